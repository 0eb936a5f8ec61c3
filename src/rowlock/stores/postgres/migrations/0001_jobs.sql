-- {schema} is the schema of the user's choice; everything is qualified with it, so that no search_path is needed.

CREATE TABLE {schema}._jobs (
    id                  uuid PRIMARY KEY,
    created             timestamptz NOT NULL,
    updated             timestamptz NOT NULL,
    run_at              timestamptz NOT NULL,
    expires_at          timestamptz,
    claimed_at          timestamptz,
    started_at          timestamptz,
    locked_until        timestamptz,
    finished_at         timestamptz,
    cancel_requested_at timestamptz,
    fire_at             timestamptz,
    timeout             double precision NOT NULL,
    progress            double precision NOT NULL DEFAULT 0,
    template_version    integer NOT NULL DEFAULT 0,  -- 0: the topic has no template
    priority            integer NOT NULL,
    version             integer NOT NULL DEFAULT 0,
    retries             integer NOT NULL DEFAULT 0,
    max_retries         integer NOT NULL,
    crashes             integer NOT NULL DEFAULT 0,
    history_dropped     integer NOT NULL DEFAULT 0,
    log_dropped         integer NOT NULL DEFAULT 0,
    stray               boolean NOT NULL DEFAULT false,  -- its id says another time than `created`, by an hour or more
    ready               boolean NOT NULL,  -- pending and due: what the claim index holds
    topic               text NOT NULL,
    status              text NOT NULL,
    locked_by           text,
    key                 text,
    scope               text,
    scope_id            text,
    step                text,
    stage               text,
    message             text,
    cancel_reason       text,
    trace               text,
    flow_id             uuid,
    schedule_id         uuid,
    tags                jsonb,
    -- json, not jsonb: it keeps the canonical text. jsonb would turn the float 1e22 into an integer and drop -0.0.
    payload             json NOT NULL,
    result              json,
    last_error          text,
    history             jsonb,
    log                 jsonb,  -- no index may ever hold it: then a progress report is a HOT update
    CONSTRAINT _jobs_status CHECK (status IN
        ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested', 'failed', 'expired', 'cancelled')),
    CONSTRAINT _jobs_ready CHECK (NOT ready OR status = 'pending'),
    CONSTRAINT _jobs_lease CHECK ((locked_until IS NOT NULL) = (status IN ('processing', 'cancel_requested')))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- No predicate here may be implied by the guard of a statement that looks jobs up by id: the planner would take the
-- partial index instead of the primary key (measured: a fenced settle fell from 52k to 5k jobs/s).
CREATE INDEX _jobs_claim ON {schema}._jobs (topic, template_version, (-priority), run_at, id) WHERE ready;
CREATE INDEX _jobs_due ON {schema}._jobs (run_at) WHERE status = 'pending' AND NOT ready;
CREATE INDEX _jobs_lease ON {schema}._jobs (locked_until) WHERE locked_until IS NOT NULL;
CREATE INDEX _jobs_dead ON {schema}._jobs (status, topic, finished_at) WHERE finished_at IS NOT NULL;
-- For lists, which have no index of their own for jobs that are on their way: those pay for every index.
CREATE INDEX _jobs_aside ON {schema}._jobs (status, id)
    WHERE status IN ('waiting', 'blocked', 'failed', 'expired', 'cancelled');
CREATE INDEX _jobs_scope_id ON {schema}._jobs (scope_id, id) WHERE scope_id IS NOT NULL;
CREATE INDEX _jobs_stray ON {schema}._jobs (id) WHERE stray;
CREATE INDEX _jobs_expiry ON {schema}._jobs (expires_at) WHERE expires_at IS NOT NULL AND status = 'pending';
CREATE INDEX _jobs_cancelling ON {schema}._jobs (cancel_requested_at) WHERE status = 'cancel_requested';
-- The key first: so it also finds jobs by their key alone.
CREATE UNIQUE INDEX _jobs_live_key ON {schema}._jobs (key, topic) WHERE key IS NOT NULL
    AND status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested');

-- Completed jobs. Append-only, in ranges of id: a UUIDv7 begins with its time, so a range is a span of days.
CREATE TABLE {schema}._jobs_archive (
    id                  uuid PRIMARY KEY,
    created             timestamptz NOT NULL,
    updated             timestamptz NOT NULL,
    run_at              timestamptz NOT NULL,
    expires_at          timestamptz,
    claimed_at          timestamptz,
    started_at          timestamptz,
    finished_at         timestamptz NOT NULL,
    cancel_requested_at timestamptz,
    fire_at             timestamptz,
    timeout             double precision NOT NULL,
    template_version    integer NOT NULL,
    priority            integer NOT NULL,
    version             integer NOT NULL,
    retries             integer NOT NULL,
    max_retries         integer NOT NULL,
    crashes             integer NOT NULL,
    history_dropped     integer NOT NULL,
    log_dropped         integer NOT NULL DEFAULT 0,
    stray               boolean NOT NULL DEFAULT false,
    topic               text NOT NULL,
    locked_by           text,  -- who completed it
    key                 text,
    scope               text,
    scope_id            text,
    step                text,
    stage               text,
    message             text,
    cancel_reason       text,
    trace               text,
    flow_id             uuid,
    schedule_id         uuid,
    tags                jsonb,
    payload             json NOT NULL,
    result              json,
    last_error          text,
    history             jsonb,
    log                 jsonb
) PARTITION BY RANGE (id);
CREATE TABLE {schema}._jobs_archive_rest PARTITION OF {schema}._jobs_archive DEFAULT;
CREATE INDEX _jobs_archive_topic ON {schema}._jobs_archive (topic, id);
CREATE INDEX _jobs_archive_finished ON {schema}._jobs_archive (topic, finished_at);
-- Only jobs that have these pay for them.
CREATE INDEX _jobs_archive_key ON {schema}._jobs_archive (key, id) WHERE key IS NOT NULL;
CREATE INDEX _jobs_archive_scope ON {schema}._jobs_archive (scope, id) WHERE scope IS NOT NULL;
CREATE INDEX _jobs_archive_scope_id ON {schema}._jobs_archive (scope_id, id) WHERE scope_id IS NOT NULL;
CREATE INDEX _jobs_archive_stray ON {schema}._jobs_archive (id) WHERE stray;
CREATE INDEX _jobs_archive_flow ON {schema}._jobs_archive (flow_id, id) WHERE flow_id IS NOT NULL;

-- How jobs have ended, by topic; what is pruned stays counted. The topic '' is all of them together.
CREATE TABLE {schema}._jobs_totals (
    topic        text COLLATE "C" PRIMARY KEY,
    completed    bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    expired      bigint NOT NULL DEFAULT 0,
    cancelled    bigint NOT NULL DEFAULT 0,
    executions   bigint NOT NULL DEFAULT 0,  -- completed ones that have a beginning
    execution_us bigint NOT NULL DEFAULT 0
);
-- What each statement adds to them. Rows are only appended, so that workers never wait for each other's counters, and
-- folded into the totals by `fold_counts`. No index: they are read and removed all together.
CREATE TABLE {schema}._jobs_counts (
    topic        text NOT NULL,
    completed    integer NOT NULL DEFAULT 0,
    failed       integer NOT NULL DEFAULT 0,
    expired      integer NOT NULL DEFAULT 0,
    cancelled    integer NOT NULL DEFAULT 0,
    executions   integer NOT NULL DEFAULT 0,
    execution_us bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE {schema}._jobs_topics (
    topic         text PRIMARY KEY,
    paused_at     timestamptz,
    paused_until  timestamptz,
    paused_reason text,
    paused_by     text
);

-- A row per worker, written by that worker alone, every few seconds: room on the page for its next versions.
CREATE TABLE {schema}._jobs_workers (
    name        text COLLATE "C" PRIMARY KEY,
    host        text NOT NULL,
    pid         integer NOT NULL,
    topics      text[] NOT NULL,
    concurrency integer NOT NULL,
    running     integer NOT NULL,
    lease       double precision NOT NULL,
    stopping    boolean NOT NULL,
    rowlock     text NOT NULL,  -- its version
    started     timestamptz NOT NULL,
    seen        timestamptz NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {schema}._jobs_audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL,
    by     text NOT NULL,
    action text NOT NULL,
    job_id uuid,
    topic  text,
    reason text,
    data   json
);

-- What is true of these tables as a whole. The identity is how a connection of the application's own is known to lead
-- here and not to another database.
CREATE TABLE {schema}._jobs_meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO {schema}._jobs_meta (name, value) VALUES ('identity', gen_random_uuid()::text);

-- Times inside JSON are integer microseconds: exact, and the same on every store.
CREATE FUNCTION {schema}._jobs_us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$;
CREATE FUNCTION {schema}._jobs_time(us bigint) RETURNS timestamptz LANGUAGE sql STABLE STRICT PARALLEL SAFE
    AS $$ SELECT timestamptz 'epoch' + us * interval '1 microsecond' $$;
-- The smallest id (UUIDv7) of a millisecond. In UTC, because then every part of it is immutable, and only so it is inlined:
-- otherwise each statement that calls it plans it anew, which takes longer than to insert a row.
CREATE FUNCTION {schema}._jobs_first_id(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT rpad(lpad(to_hex((extract(epoch FROM at AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0'), 32, '0')::uuid $$;
-- The newest 100 entries stay; statements count what goes in history_dropped.
CREATE FUNCTION {schema}._jobs_append(history jsonb, entry jsonb) RETURNS jsonb LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN jsonb_array_length(history) >= 100 THEN history - 0 ELSE coalesce(history, '[]') END
                 || jsonb_build_array(entry) $$;
CREATE FUNCTION {schema}._jobs_overflow(history jsonb) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN jsonb_array_length(history) >= 100 THEN 1 ELSE 0 END $$;

DO $$  -- the archive's first days; `keep_partitions` makes the next ones
DECLARE
    day timestamp := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC');
BEGIN
    FOR n IN 0..3 LOOP
        EXECUTE format(
            'CREATE TABLE {schema}.%I PARTITION OF {schema}._jobs_archive FOR VALUES FROM (%L) TO (%L)',
            '_jobs_archive_' || to_char(day, 'YYYYMMDD'), {schema}._jobs_first_id(day AT TIME ZONE 'UTC'),
            {schema}._jobs_first_id((day + interval '1 day') AT TIME ZONE 'UTC'));
        day := day + interval '1 day';
    END LOOP;
END $$;

-- Every job, wherever it is kept.
CREATE VIEW {schema}._jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(jsonb_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped
FROM {schema}._jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, 100.0::double precision, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL::timestamptz, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
       claimed_at, started_at, finished_at,
       2 + version + coalesce(jsonb_array_length(history), 0) + history_dropped,
       history, history_dropped
FROM {schema}._jobs_archive;

-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
CREATE VIEW {schema}._jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event, 'pending' AS status, 0 AS version,
       NULL::text AS by, '{}'::jsonb AS data
FROM {schema}._jobs_all
UNION ALL  -- claims of runs that ended without completing
SELECT j.id,
       (e->>'version')::int + j.history_dropped + (
           SELECT count(*)::int FROM jsonb_array_elements(j.history) o WHERE (o->>'version')::int < (e->>'version')::int),
       {schema}._jobs_time((e->>'claimed_at')::bigint), 'claimed', 'processing', (e->>'version')::int,
       coalesce(e->>'worker', e->>'by'), jsonb_strip_nulls(jsonb_build_object('started_at', e->'started_at'))
FROM {schema}._jobs_all j CROSS JOIN jsonb_array_elements(j.history) e
WHERE e ? 'claimed_at'
UNION ALL  -- the claim of the run that is open, or that completed
SELECT j.id,
       j.version + j.history_dropped + (
           SELECT count(*)::int FROM jsonb_array_elements(j.history) o WHERE (o->>'version')::int < j.version),
       j.claimed_at, 'claimed', 'processing', j.version, j.locked_by,
       jsonb_strip_nulls(jsonb_build_object('started_at', {schema}._jobs_us(j.started_at)))
FROM {schema}._jobs_all j
WHERE j.status IN ('processing', 'cancel_requested', 'completed')
UNION ALL
SELECT j.id, (n + j.history_dropped)::int + (e->>'version')::int, {schema}._jobs_time((e->>'at')::bigint),
       e->>'event', e->>'status', (e->>'version')::int, e->>'by', e - '{at,event,status,version,by}'::text[]
FROM {schema}._jobs_all j CROSS JOIN jsonb_array_elements(j.history) WITH ORDINALITY AS h(e, n)
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'::jsonb
FROM {schema}._jobs_all
WHERE status = 'completed';
