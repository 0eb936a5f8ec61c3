-- Flows: jobs that wait for the ends of other jobs (docs/flows.md).

CREATE TABLE {schema}._jobs_flows (
    id      uuid PRIMARY KEY,
    name    text COLLATE "C" NOT NULL,
    by      text,
    jobs    integer NOT NULL,          -- that it has had, also those that are pruned
    nodes   json NOT NULL,             -- [[id, name], …] of the jobs that its maker has named
    created timestamptz NOT NULL,
    looked  timestamptz NOT NULL       -- when a process last looked whether its jobs are pruned
);
CREATE INDEX _jobs_flows_looked ON {schema}._jobs_flows (looked);

-- `child` waits for `parent`. See core/flows.py.
CREATE TABLE {schema}._jobs_edges (
    child     uuid NOT NULL,
    parent    uuid NOT NULL,
    flow_id   uuid NOT NULL,
    name      text COLLATE "C" NOT NULL,   -- the parent's, in conditions and payloads
    line      text COLLATE "C" NOT NULL,   -- the parent's: its end is noted under it
    if_failed text NOT NULL,
    condition text,
    fills     boolean NOT NULL,            -- the parent's result is needed
    call      integer,                     -- the child has started the parent by this ctx.gather; NULL: it is blocked
    place     integer NOT NULL,            -- in that call
    owner     text COLLATE "C",            -- the child's line, if it has started the parent
    ended     text,                        -- how the parent has ended; NULL: it has not
    verdict   text,                        -- 'pass', 'stop', 'hold', 'untaken' or 'false'
    result    json,
    error     text,
    PRIMARY KEY (child, parent)
) WITH (fillfactor = 45);  -- each row is written twice: the second version finds room beside the first, and needs no index
CREATE INDEX _jobs_edges_line ON {schema}._jobs_edges (line, child);
CREATE INDEX _jobs_edges_flow ON {schema}._jobs_edges (flow_id);
CREATE INDEX _jobs_edges_owner ON {schema}._jobs_edges (owner) WHERE owner IS NOT NULL;

-- No job has had a flow_id before: the index is empty, and costs jobs without a flow nothing.
CREATE INDEX _jobs_flow ON {schema}._jobs (flow_id, id) WHERE flow_id IS NOT NULL;

-- A job that waits for others is blocked at first.
-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
CREATE OR REPLACE VIEW {schema}._jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL AND (flow_id IS NULL OR NOT EXISTS (
           SELECT FROM {schema}._jobs_edges e WHERE e.child = j.id AND e.call IS NULL))
            THEN 'pending' ELSE 'blocked' END AS status, 0 AS version,
       NULL::text AS by, '{}'::jsonb AS data
FROM {schema}._jobs_all j
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
