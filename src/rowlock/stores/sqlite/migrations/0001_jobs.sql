-- Times are integer microseconds since the epoch, JSON is text. Wide columns stand last: SQLite reads a row up to the
-- last column it needs, and a long text may continue on other pages.

CREATE TABLE _jobs (
    n                   INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    topic               TEXT NOT NULL,
    template_version    INTEGER NOT NULL DEFAULT 0,  -- 0: the topic has no template
    status              TEXT NOT NULL DEFAULT 'pending',
    stray               INTEGER NOT NULL DEFAULT 0,  -- its id says another time than `created`, by an hour or more
    ready               INTEGER NOT NULL,  -- pending and due: what the claim index holds
    priority            INTEGER NOT NULL,
    version             INTEGER NOT NULL DEFAULT 0,
    retries             INTEGER NOT NULL DEFAULT 0,
    max_retries         INTEGER NOT NULL,
    crashes             INTEGER NOT NULL DEFAULT 0,
    timeout             REAL NOT NULL,
    progress            REAL NOT NULL DEFAULT 0,
    created             INTEGER NOT NULL,
    updated             INTEGER NOT NULL,
    run_at              INTEGER NOT NULL,
    expires_at          INTEGER,
    claimed_at          INTEGER,
    started_at          INTEGER,
    locked_until        INTEGER,
    finished_at         INTEGER,
    cancel_requested_at INTEGER,
    fire_at             INTEGER,
    locked_by           TEXT,
    key                 TEXT,
    scope               TEXT,
    scope_id            TEXT,
    flow_id             TEXT,
    schedule_id         TEXT,
    step                TEXT,
    stage               TEXT,
    trace               TEXT,
    history_dropped     INTEGER NOT NULL DEFAULT 0,
    log_dropped         INTEGER NOT NULL DEFAULT 0,
    tags                TEXT,
    message             TEXT,
    cancel_reason       TEXT,
    payload             TEXT NOT NULL,
    result              TEXT,
    last_error          TEXT,
    history             TEXT,
    log                 TEXT,
    -- Not IN: for a list of more than two, SQLite builds a temporary index each time a statement runs, which tripled
    -- the cost of an insert.
    CONSTRAINT _jobs_status CHECK (status = 'pending' OR status = 'processing' OR status = 'failed'
        OR status = 'cancelled' OR status = 'expired' OR status = 'blocked' OR status = 'waiting'
        OR status = 'cancel_requested'),
    CONSTRAINT _jobs_ready CHECK ((ready = 0 OR ready = 1) AND (NOT ready OR status = 'pending')),
    CONSTRAINT _jobs_lease CHECK (
        (locked_until IS NOT NULL) = (status = 'processing' OR status = 'cancel_requested')),
    CONSTRAINT _jobs_finished CHECK (
        (finished_at IS NOT NULL) = (status = 'failed' OR status = 'cancelled' OR status = 'expired'))
);

-- A partial index is used only where a statement repeats its predicate to the letter: `ready`, not `ready = 1`.
-- The claim index holds all that a claim asks for, so that expired jobs are passed over without reading their rows.
CREATE INDEX _jobs_claim ON _jobs (topic, template_version, priority DESC, run_at, id, expires_at, ready) WHERE ready;
CREATE INDEX _jobs_due ON _jobs (run_at) WHERE status = 'pending' AND NOT ready;
CREATE INDEX _jobs_lease ON _jobs (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX _jobs_dead ON _jobs (status, topic, finished_at) WHERE finished_at IS NOT NULL;
-- For lists, which have no index of their own for jobs that are on their way: those pay for every index.
CREATE INDEX _jobs_aside ON _jobs (status, id) WHERE status = 'failed' OR status = 'cancelled' OR status = 'expired'
    OR status = 'waiting' OR status = 'blocked';
CREATE INDEX _jobs_scope_id ON _jobs (scope_id, id) WHERE scope_id IS NOT NULL;
CREATE INDEX _jobs_stray ON _jobs (id) WHERE stray;
CREATE INDEX _jobs_expiry ON _jobs (expires_at) WHERE expires_at IS NOT NULL AND status = 'pending';
CREATE INDEX _jobs_cancelling ON _jobs (cancel_requested_at) WHERE status = 'cancel_requested';
-- The key first: so it also finds jobs by their key alone.
CREATE UNIQUE INDEX _jobs_live_key ON _jobs (key, topic) WHERE key IS NOT NULL AND finished_at IS NULL;

-- Completed jobs, in the order in which they were completed.
CREATE TABLE _jobs_archive (
    n                   INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    topic               TEXT NOT NULL,
    template_version    INTEGER NOT NULL,
    stray               INTEGER NOT NULL DEFAULT 0,
    priority            INTEGER NOT NULL,
    version             INTEGER NOT NULL,
    retries             INTEGER NOT NULL,
    max_retries         INTEGER NOT NULL,
    crashes             INTEGER NOT NULL,
    timeout             REAL NOT NULL,
    created             INTEGER NOT NULL,
    updated             INTEGER NOT NULL,
    run_at              INTEGER NOT NULL,
    expires_at          INTEGER,
    claimed_at          INTEGER,
    started_at          INTEGER,
    finished_at         INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    fire_at             INTEGER,
    locked_by           TEXT,  -- who completed it
    key                 TEXT,
    scope               TEXT,
    scope_id            TEXT,
    flow_id             TEXT,
    schedule_id         TEXT,
    step                TEXT,
    stage               TEXT,
    trace               TEXT,
    history_dropped     INTEGER NOT NULL,
    log_dropped         INTEGER NOT NULL DEFAULT 0,
    tags                TEXT,
    message             TEXT,
    cancel_reason       TEXT,
    payload             TEXT NOT NULL,
    result              TEXT,
    last_error          TEXT,
    history             TEXT,
    log                 TEXT
);
CREATE INDEX _jobs_archive_topic ON _jobs_archive (topic, id);
CREATE INDEX _jobs_archive_finished ON _jobs_archive (topic, finished_at);
-- Only jobs that have these pay for them.
CREATE INDEX _jobs_archive_key ON _jobs_archive (key, id) WHERE key IS NOT NULL;
CREATE INDEX _jobs_archive_scope ON _jobs_archive (scope, id) WHERE scope IS NOT NULL;
CREATE INDEX _jobs_archive_scope_id ON _jobs_archive (scope_id, id) WHERE scope_id IS NOT NULL;
CREATE INDEX _jobs_archive_stray ON _jobs_archive (id) WHERE stray;
CREATE INDEX _jobs_archive_flow ON _jobs_archive (flow_id, id) WHERE flow_id IS NOT NULL;

-- How jobs have ended, by topic; what is pruned stays counted. The topic '' is all of them together. There is one
-- writer, so nobody has to wait for these rows.
CREATE TABLE _jobs_totals (
    topic        TEXT PRIMARY KEY,
    completed    INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    expired      INTEGER NOT NULL,
    cancelled    INTEGER NOT NULL,
    executions   INTEGER NOT NULL,  -- completed ones that have a beginning
    execution_us INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE _jobs_topics (
    topic         TEXT PRIMARY KEY,
    paused_at     INTEGER,
    paused_until  INTEGER,
    paused_reason TEXT,
    paused_by     TEXT
);
CREATE INDEX _jobs_topics_paused ON _jobs_topics (topic) WHERE paused_at IS NOT NULL;

-- A row per worker, written by that worker alone.
CREATE TABLE _jobs_workers (
    name        TEXT PRIMARY KEY,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    topics      TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    running     INTEGER NOT NULL,
    lease       REAL NOT NULL,
    stopping    INTEGER NOT NULL,
    rowlock     TEXT NOT NULL,  -- its version
    started     INTEGER NOT NULL,
    seen        INTEGER NOT NULL
);

CREATE TABLE _jobs_audit (
    id     INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    "by"   TEXT NOT NULL,
    action TEXT NOT NULL,
    job_id TEXT,
    topic  TEXT,
    reason TEXT,
    data   TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX _jobs_audit_job ON _jobs_audit (job_id) WHERE job_id IS NOT NULL;

-- One row that `ring` changes, because every commit wakes those who watch the file.
CREATE TABLE _jobs_doorbell (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    rings INTEGER NOT NULL
);
INSERT INTO _jobs_doorbell (id, rings) VALUES (1, 0);

-- What is true of these tables as a whole. The identity is how a connection of the application's own is known to lead
-- here and not to another file.
CREATE TABLE _jobs_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO _jobs_meta (name, value) VALUES ('identity', lower(hex(randomblob(16))));

-- Every job, wherever it is kept.
CREATE VIEW _jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(json_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped
FROM _jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags,
       trace, step, 100.0, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       2 + version + coalesce(json_array_length(history), 0) + history_dropped,
       history, history_dropped
FROM _jobs_archive;

-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
-- seq counts what came before: one enqueue, as many claims as the version says, and the entries.
CREATE VIEW _jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event, 'pending' AS status, 0 AS version,
       NULL AS "by", '{}' AS data
FROM _jobs_all
UNION ALL  -- claims of runs that ended without completing
SELECT j.id,
       json_extract(e.value, '$.version') + j.history_dropped + (
           SELECT count(*) FROM json_each(j.history) o
           WHERE json_extract(o.value, '$.version') < json_extract(e.value, '$.version')),
       json_extract(e.value, '$.claimed_at'), 'claimed', 'processing', json_extract(e.value, '$.version'),
       coalesce(json_extract(e.value, '$.worker'), json_extract(e.value, '$.by')),
       CASE WHEN json_extract(e.value, '$.started_at') IS NULL THEN '{}'
            ELSE json_object('started_at', json_extract(e.value, '$.started_at')) END
FROM _jobs_all j, json_each(j.history) e
WHERE json_type(e.value, '$.claimed_at') IS NOT NULL
UNION ALL  -- the claim of the run that is open, or that completed
SELECT j.id,
       j.version + j.history_dropped + (
           SELECT count(*) FROM json_each(j.history) o WHERE json_extract(o.value, '$.version') < j.version),
       j.claimed_at, 'claimed', 'processing', j.version, j.locked_by,
       CASE WHEN j.started_at IS NULL THEN '{}' ELSE json_object('started_at', j.started_at) END
FROM _jobs_all j
WHERE j.status IN ('processing', 'cancel_requested', 'completed')
UNION ALL
SELECT j.id, 1 + e.key + j.history_dropped + json_extract(e.value, '$.version'), json_extract(e.value, '$.at'),
       json_extract(e.value, '$.event'), json_extract(e.value, '$.status'), json_extract(e.value, '$.version'),
       json_extract(e.value, '$.by'),
       json_remove(e.value, '$.at', '$.event', '$.status', '$.version', '$.by')
FROM _jobs_all j, json_each(j.history) e
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'
FROM _jobs_all
WHERE status = 'completed';
