-- Templates, lines (if_live = 'queue' or 'replace'), and keys that count for ever (once).

-- All of it by one ALTER TABLE, whose lock is held until the commit. No row is rewritten.
ALTER TABLE {schema}._jobs
    ADD COLUMN if_live  text,     -- 'queue' or 'replace'; NULL: 'reject', or no key
    ADD COLUMN line     text,     -- a digest of topic, scope, scope_id and key: the line in which the job stands
    ADD COLUMN line_seq bigint;   -- its place there
ALTER TABLE {schema}._jobs_archive ADD COLUMN if_live text;
CREATE SEQUENCE {schema}._jobs_line_seq;

-- At most one live job per key, but for jobs in a line: each has a place of its own. The new index is built before the old
-- one goes, in one transaction. It has the old one's predicate, by which running processes of an older release use it.
CREATE UNIQUE INDEX _jobs_live_placed_key
    ON {schema}._jobs (key, topic, {schema}._jobs_short(scope), {schema}._jobs_short(scope_id), coalesce(line_seq, 0))
    WHERE key IS NOT NULL AND status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested');
DROP INDEX {schema}._jobs_live_key;
ALTER INDEX {schema}._jobs_live_placed_key RENAME TO _jobs_live_key;
-- A line has one head: whatever unblocks a second job fails.
CREATE UNIQUE INDEX _jobs_head ON {schema}._jobs (line)
    WHERE line IS NOT NULL AND status IN ('pending', 'processing', 'waiting', 'cancel_requested');
CREATE INDEX _jobs_line ON {schema}._jobs (line, line_seq) WHERE line IS NOT NULL AND status = 'blocked';

-- Lines in which something has ended or come: `advance` takes these rows and unblocks the next job.
CREATE TABLE {schema}._jobs_ends (
    n    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Keys of which there is one job, ever. The job may be gone; an operator who deletes it frees the key.
CREATE TABLE {schema}._jobs_once (
    line   text PRIMARY KEY,
    job_id uuid NOT NULL,
    at     timestamptz NOT NULL
);
CREATE INDEX _jobs_once_job ON {schema}._jobs_once (job_id);

-- Roles that may settle jobs by SQL (docs/sql.md) note the ends in lines as well.
DO $$
DECLARE
    role record;
BEGIN
    FOR role IN SELECT DISTINCT g.grantee FROM information_schema.role_table_grants g
                WHERE format('%I', g.table_schema) || '.' || g.table_name = '{schema}._jobs' AND g.privilege_type = 'DELETE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT ON {schema}._jobs_ends TO %s',
                       CASE role.grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(role.grantee) END);
    END LOOP;
END $$;

-- The definitions of topics. They are kept among the records.
CREATE VIEW {schema}._jobs_templates AS
SELECT r.data->'template'->>'topic' AS topic, (r.data->'template'->>'version')::int AS version,
       (r.data->>'enabled')::bool AS enabled, r.data->>'source' AS source, r.data->'template' AS definition,
       r.created, r.updated
FROM {schema}._jobs_records r WHERE r.kind = 'template';
CREATE INDEX _jobs_records_topic ON {schema}._jobs_records ((data->'template'->>'topic')) WHERE kind = 'template';

-- The views, with if_live: a job that comes to a line is blocked at first.
-- Every job, wherever it is kept.
CREATE OR REPLACE VIEW {schema}._jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(jsonb_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped, if_live
FROM {schema}._jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, 100.0::double precision, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL::timestamptz, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
       claimed_at, started_at, finished_at,
       2 + version + coalesce(jsonb_array_length(history), 0) + history_dropped,
       history, history_dropped, if_live
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
WHERE j.status IN ('processing', 'cancel_requested', 'completed')
UNION ALL
SELECT j.id, (n + j.history_dropped)::int + (e->>'version')::int, {schema}._jobs_time((e->>'at')::bigint),
       e->>'event', e->>'status', (e->>'version')::int, e->>'by', e - '{at,event,status,version,by}'::text[]
FROM {schema}._jobs_all j CROSS JOIN jsonb_array_elements(j.history) WITH ORDINALITY AS h(e, n)
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'::jsonb
FROM {schema}._jobs_all
WHERE status = 'completed';
