-- Waits and signals. A job that waits says for what; `run_at` is when the wait ends by itself.
--
-- A waiting job that is cancelled may be ready for its last run, without a lease. SQLite can't change a CHECK, so the table is
-- made anew and the rows are copied.
DROP VIEW _jobs_events;
DROP VIEW _jobs_all;

CREATE TABLE _jobs_anew (
    n                   INTEGER PRIMARY KEY,
    id                  TEXT NOT NULL UNIQUE,
    topic               TEXT NOT NULL,
    template_version    INTEGER NOT NULL DEFAULT 0,  -- 0: the topic has no template
    status              TEXT NOT NULL DEFAULT 'pending',
    stray               INTEGER NOT NULL DEFAULT 0,  -- its id says another time than `created`, by an hour or more
    ready               INTEGER NOT NULL,  -- to be claimed now: what the claim index holds
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
    if_live             TEXT,      -- 'queue' or 'replace'; NULL: 'reject', or no key
    line                TEXT,      -- a digest of topic, scope, scope_id and key: the line in which the job stands
    line_seq            INTEGER,   -- its place there
    waits_for           TEXT,      -- 'sleep' or 'signal:NAME'; NULL: it does not wait
    signals             INTEGER,   -- that it has got so far; NULL: none
    fingerprint         TEXT,
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
    CONSTRAINT _jobs_ready CHECK ((ready = 0 OR ready = 1)
        AND (NOT ready OR status = 'pending' OR (status = 'cancel_requested' AND locked_until IS NULL))),
    CONSTRAINT _jobs_lease CHECK (status = 'cancel_requested' OR (locked_until IS NOT NULL) = (status = 'processing')),
    CONSTRAINT _jobs_finished CHECK (
        (finished_at IS NOT NULL) = (status = 'failed' OR status = 'cancelled' OR status = 'expired'))
);

INSERT INTO _jobs_anew (
    n, id, topic, template_version, status, stray, ready, priority, version, retries, max_retries, crashes, timeout, progress,
    created, updated, run_at, expires_at, claimed_at, started_at, locked_until, finished_at, cancel_requested_at, fire_at,
    locked_by, key, scope, scope_id, if_live, line, line_seq, fingerprint, flow_id, schedule_id, step, stage, trace,
    history_dropped, log_dropped, tags, message, cancel_reason, payload, result, last_error, history, log)
SELECT
    n, id, topic, template_version, status, stray, ready, priority, version, retries, max_retries, crashes, timeout, progress,
    created, updated, run_at, expires_at, claimed_at, started_at, locked_until, finished_at, cancel_requested_at, fire_at,
    locked_by, key, scope, scope_id, if_live, line, line_seq, fingerprint, flow_id, schedule_id, step, stage, trace,
    history_dropped, log_dropped, tags, message, cancel_reason, payload, result, last_error, history, log
FROM _jobs ORDER BY n;

DROP TABLE _jobs;
-- Else the renaming fails if the application has a view on our tables, which lead nowhere at this moment.
PRAGMA legacy_alter_table = ON;
ALTER TABLE _jobs_anew RENAME TO _jobs;
PRAGMA legacy_alter_table = OFF;

-- A partial index is used only where a statement repeats its predicate to the letter: `ready`, not `ready = 1`.
-- The claim index holds all that a claim asks for, so that expired jobs are passed over without reading their rows.
CREATE INDEX _jobs_claim ON _jobs (topic, template_version, priority DESC, run_at, id, expires_at, started_at, ready)
    WHERE ready;
-- Jobs that a time makes ready. The status first: what is asked about pending jobs must not pass over all that wait.
CREATE INDEX _jobs_due ON _jobs (status, run_at) WHERE (status = 'pending' OR status = 'waiting') AND NOT ready;
CREATE INDEX _jobs_lease ON _jobs (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX _jobs_dead ON _jobs (status, topic, finished_at) WHERE finished_at IS NOT NULL;
-- For lists, which have no index of their own for jobs that are on their way: those pay for every index.
CREATE INDEX _jobs_aside ON _jobs (status, id) WHERE status = 'failed' OR status = 'cancelled' OR status = 'expired'
    OR status = 'waiting' OR status = 'blocked';
CREATE INDEX _jobs_scope_id ON _jobs (scope_id, id) WHERE scope_id IS NOT NULL;
CREATE INDEX _jobs_stray ON _jobs (id) WHERE stray;
CREATE INDEX _jobs_expiry ON _jobs (expires_at) WHERE expires_at IS NOT NULL AND status = 'pending';
CREATE INDEX _jobs_cancelling ON _jobs (cancel_requested_at) WHERE status = 'cancel_requested';
CREATE UNIQUE INDEX _jobs_live_key ON _jobs (key, topic, coalesce(scope, ''), coalesce(scope_id, ''), coalesce(line_seq, 0))
    WHERE key IS NOT NULL AND finished_at IS NULL;
-- A line has one head: whatever unblocks a second job fails.
CREATE UNIQUE INDEX _jobs_head ON _jobs (line) WHERE line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL;
CREATE INDEX _jobs_line ON _jobs (line, line_seq) WHERE line IS NOT NULL AND status = 'blocked';
CREATE INDEX _jobs_failures ON _jobs (finished_at, fingerprint, topic, id)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_fingerprint ON _jobs (fingerprint, id, finished_at, topic)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_ungrouped ON _jobs (finished_at)
    WHERE fingerprint IS NULL AND (status = 'failed' OR status = 'expired');

-- A wait is stored like a step, and so is an address for the outside world: when each ends by itself; NULL: never.
ALTER TABLE _jobs_steps ADD COLUMN deadline INTEGER;

CREATE TABLE _jobs_signals (
    job_id    TEXT NOT NULL,
    seq       INTEGER NOT NULL,  -- the number of the signal: the job counts them
    name      TEXT NOT NULL,
    signal_id TEXT,              -- counts once per job
    data      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    "by"      TEXT,
    wait      TEXT,              -- the row of _jobs_steps that has read it, by name and n; NULL: unread
    wait_n    INTEGER,
    PRIMARY KEY (job_id, seq)
);
CREATE UNIQUE INDEX _jobs_signals_id ON _jobs_signals (job_id, signal_id) WHERE signal_id IS NOT NULL;
CREATE INDEX _jobs_signals_unread ON _jobs_signals (job_id, name, seq) WHERE wait IS NULL;

-- Every job, wherever it is kept.
CREATE VIEW _jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(json_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped, if_live, waits_for
FROM _jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags,
       trace, step, 100.0, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       2 + version + coalesce(json_array_length(history), 0) + history_dropped,
       history, history_dropped, if_live, NULL
FROM _jobs_archive;

-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
-- seq counts what came before: one enqueue, as many claims as the version says, and the entries.
CREATE VIEW _jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL THEN 'pending' ELSE 'blocked' END AS status, 0 AS version,
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
WHERE j.status = 'completed' OR j.locked_until IS NOT NULL  -- not all that are cancel_requested have a lease
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
