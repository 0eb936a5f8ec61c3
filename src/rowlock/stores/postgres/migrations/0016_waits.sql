-- Waits and signals (docs/waits.md).

-- Views first, then their tables, as running statements lock them: so neither side waits for the other in a circle.
LOCK TABLE {schema}._jobs_events, {schema}._jobs_all, {schema}._jobs, {schema}._jobs_steps IN ACCESS EXCLUSIVE MODE;

-- No row is rewritten or read: the constraints that go were stricter than those that come. A waiting job that is being
-- cancelled has no lease, and is ready if its handler must run once more.
ALTER TABLE {schema}._jobs
    ADD COLUMN waits_for text,     -- 'sleep' or 'signal:NAME'; NULL: the job does not wait
    ADD COLUMN signals   integer,  -- how many signals it has ever got; NULL: none
    DROP CONSTRAINT _jobs_ready,
    DROP CONSTRAINT _jobs_lease,
    ADD CONSTRAINT _jobs_ready CHECK (
        NOT ready OR status = 'pending' OR status = 'cancel_requested' AND locked_until IS NULL) NOT VALID,
    ADD CONSTRAINT _jobs_lease CHECK (
        (locked_until IS NOT NULL) = (status IN ('processing', 'cancel_requested'))
        OR status = 'cancel_requested') NOT VALID;

-- Times at which jobs become due: of future jobs, and of waits. The new index is built before the old one goes. Its
-- predicate holds for the statements of processes of an older release, too.
CREATE INDEX _jobs_due_or_waiting ON {schema}._jobs (run_at, status) WHERE status IN ('pending', 'waiting') AND NOT ready;
DROP INDEX {schema}._jobs_due;
ALTER INDEX {schema}._jobs_due_or_waiting RENAME TO _jobs_due;

-- When a wait or a callback ends by itself. They are stored among the steps, under names that begin with @.
ALTER TABLE {schema}._jobs_steps ADD COLUMN deadline timestamptz;

-- The signals of jobs. They stay as long as their job, unless a requeue drops the wait that has read them.
CREATE TABLE {schema}._jobs_signals (
    job_id    uuid NOT NULL,
    seq       integer NOT NULL,           -- the n-th signal of the job
    name      text COLLATE "C" NOT NULL,
    signal_id text,                       -- counts once per job
    at        timestamptz NOT NULL,
    by        text,
    wait      text,                       -- the wait that has read it: name and n in _jobs_steps; NULL: unread
    wait_n    integer,
    data      json NOT NULL,
    PRIMARY KEY (job_id, seq)
) PARTITION BY RANGE (job_id);
CREATE UNIQUE INDEX _jobs_signals_id ON {schema}._jobs_signals (job_id, signal_id) WHERE signal_id IS NOT NULL;
CREATE INDEX _jobs_signals_unread ON {schema}._jobs_signals (job_id, name, seq) WHERE wait IS NULL;
CREATE TABLE {schema}._jobs_signals_rest PARTITION OF {schema}._jobs_signals DEFAULT;

-- The same days as the archive has, so that a day of all three can be dropped together.
DO $$
DECLARE
    day timestamp;
BEGIN
    FOR day IN SELECT to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp FROM pg_catalog.pg_inherits i
               JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = '{schema}._jobs_archive'::regclass AND c.relname ~ '^_jobs_archive_[0-9]{8}$' ORDER BY 1
    LOOP
        EXECUTE format(
            'CREATE TABLE {schema}.%I PARTITION OF {schema}._jobs_signals FOR VALUES FROM (%L) TO (%L)',
            '_jobs_signals_' || to_char(day, 'YYYYMMDD'), {schema}._jobs_first_id(day AT TIME ZONE 'UTC'),
            {schema}._jobs_first_id((day + interval '1 day') AT TIME ZONE 'UTC'));
    END LOOP;
END $$;

-- Roles that may settle jobs by SQL (docs/sql.md) may store their signals as well.
DO $$
DECLARE
    role record;
BEGIN
    FOR role IN SELECT DISTINCT g.grantee FROM information_schema.role_table_grants g
                WHERE format('%I', g.table_schema) || '.' || g.table_name = '{schema}._jobs' AND g.privilege_type = 'DELETE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}._jobs_signals TO %s',
                       CASE role.grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(role.grantee) END);
    END LOOP;
END $$;

-- The views, with waits_for. A waiting job that is being cancelled has no open claim until a worker claims it once more.
-- Every job, wherever it is kept.
CREATE OR REPLACE VIEW {schema}._jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(jsonb_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped, if_live, waits_for
FROM {schema}._jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, 100.0::double precision, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL::timestamptz, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
       claimed_at, started_at, finished_at,
       2 + version + coalesce(jsonb_array_length(history), 0) + history_dropped,
       history, history_dropped, if_live, NULL::text
FROM {schema}._jobs_archive;

-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
CREATE OR REPLACE VIEW {schema}._jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL THEN 'pending' ELSE 'blocked' END AS status, 0 AS version,
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
WHERE j.status IN ('processing', 'completed') OR j.status = 'cancel_requested' AND j.locked_until IS NOT NULL
UNION ALL
SELECT j.id, (n + j.history_dropped)::int + (e->>'version')::int, {schema}._jobs_time((e->>'at')::bigint),
       e->>'event', e->>'status', (e->>'version')::int, e->>'by', e - '{at,event,status,version,by}'::text[]
FROM {schema}._jobs_all j CROSS JOIN jsonb_array_elements(j.history) WITH ORDINALITY AS h(e, n)
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'::jsonb
FROM {schema}._jobs_all
WHERE status = 'completed';
