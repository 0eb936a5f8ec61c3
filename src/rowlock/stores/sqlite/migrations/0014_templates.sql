-- Templates, lines (if_live = 'queue' or 'replace'), and keys that count for ever (once).

ALTER TABLE _jobs ADD COLUMN if_live TEXT;      -- 'queue' or 'replace'; NULL: 'reject', or no key
ALTER TABLE _jobs ADD COLUMN line TEXT;         -- a digest of topic, scope, scope_id and key: the line in which the job stands
ALTER TABLE _jobs ADD COLUMN line_seq INTEGER;  -- its place there
ALTER TABLE _jobs_archive ADD COLUMN if_live TEXT;

-- At most one live job per key, but for jobs in a line: each has a place of its own. It has the old index's predicate, by
-- which running processes of an older release use it.
DROP INDEX _jobs_live_key;
CREATE UNIQUE INDEX _jobs_live_key ON _jobs (key, topic, coalesce(scope, ''), coalesce(scope_id, ''), coalesce(line_seq, 0))
    WHERE key IS NOT NULL AND finished_at IS NULL;
-- A line has one head: whatever unblocks a second job fails.
CREATE UNIQUE INDEX _jobs_head ON _jobs (line) WHERE line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL;
CREATE INDEX _jobs_line ON _jobs (line, line_seq) WHERE line IS NOT NULL AND status = 'blocked';

-- Keys of which there is one job, ever. The job may be gone; an operator who deletes it frees the key.
CREATE TABLE _jobs_once (
    line   TEXT PRIMARY KEY,
    job_id TEXT NOT NULL,
    at     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX _jobs_once_job ON _jobs_once (job_id);

-- The definitions of topics. They are kept among the records.
CREATE VIEW _jobs_templates AS
SELECT json_extract(r.data, '$.template.topic') AS topic, json_extract(r.data, '$.template.version') AS version,
       json_extract(r.data, '$.enabled') AS enabled, json_extract(r.data, '$.source') AS source,
       json_extract(r.data, '$.template') AS definition, r.created, r.updated
FROM _jobs_records r WHERE r.kind = 'template';

-- The views, with if_live: a job that comes to a line is blocked at first.
DROP VIEW _jobs_events;
DROP VIEW _jobs_all;
-- Every job, wherever it is kept.
CREATE VIEW _jobs_all AS
SELECT id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       1 + version + coalesce(json_array_length(history), 0) + history_dropped AS events_count,
       history, history_dropped, if_live
FROM _jobs
UNION ALL
SELECT id, topic, template_version, payload, 'completed', priority, run_at, expires_at, key, scope, scope_id, tags,
       trace, step, 100.0, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at,
       2 + version + coalesce(json_array_length(history), 0) + history_dropped,
       history, history_dropped, if_live
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
