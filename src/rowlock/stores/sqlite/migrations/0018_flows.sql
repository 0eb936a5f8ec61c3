-- Flows: jobs that wait for the ends of other jobs (docs/flows.md).

CREATE TABLE _jobs_flows (
    id      TEXT NOT NULL PRIMARY KEY,
    name    TEXT NOT NULL,
    "by"    TEXT,
    jobs    INTEGER NOT NULL,       -- that it has had, also those that are pruned
    nodes   TEXT NOT NULL,          -- [[id, name], …] of the jobs that its maker has named
    created INTEGER NOT NULL,
    looked  INTEGER NOT NULL        -- when a process last looked whether its jobs are pruned
) WITHOUT ROWID;
CREATE INDEX _jobs_flows_looked ON _jobs_flows (looked);

-- `child` waits for `parent`. See core/flows.py.
CREATE TABLE _jobs_edges (
    child     TEXT NOT NULL,
    parent    TEXT NOT NULL,
    flow_id   TEXT NOT NULL,
    name      TEXT NOT NULL,     -- the parent's, in conditions and payloads
    line      TEXT NOT NULL,     -- the parent's: its end is noted under it
    if_failed TEXT NOT NULL,
    condition TEXT,
    fills     INTEGER NOT NULL,  -- the parent's result is needed
    call      INTEGER,           -- the child has started the parent by this ctx.gather; NULL: it is blocked
    place     INTEGER NOT NULL,  -- in that call
    owner     TEXT,              -- the child's line, if it has started the parent
    ended     TEXT,              -- how the parent has ended; NULL: it has not
    verdict   TEXT,              -- 'pass', 'stop', 'hold', 'untaken' or 'false'
    result    TEXT,
    error     TEXT,
    PRIMARY KEY (child, parent)
) WITHOUT ROWID;
CREATE INDEX _jobs_edges_line ON _jobs_edges (line, child);
CREATE INDEX _jobs_edges_flow ON _jobs_edges (flow_id);
CREATE INDEX _jobs_edges_owner ON _jobs_edges (owner) WHERE owner IS NOT NULL;

CREATE INDEX _jobs_flow ON _jobs (flow_id, id) WHERE flow_id IS NOT NULL;

-- A job that waits for others is blocked at first.
DROP VIEW _jobs_events;
-- The whole timeline, derived: enqueue, claim and completion from columns, everything else from the row's history.
-- seq counts what came before: one enqueue, as many claims as the version says, and the entries.
CREATE VIEW _jobs_events AS
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL AND (flow_id IS NULL OR NOT EXISTS (
           SELECT 1 FROM _jobs_edges e WHERE e.child = j.id AND e.call IS NULL))
            THEN 'pending' ELSE 'blocked' END AS status, 0 AS version,
       NULL AS "by", '{}' AS data
FROM _jobs_all j
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
