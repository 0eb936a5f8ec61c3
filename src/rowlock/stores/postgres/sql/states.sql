-- What of jobs is short, in the order of State's fields. One by one: for = ANY the planner would look at all parts of the
-- archive, and take longer to decide than to read (measured for 1000 ids: 45 ms, and 10 ms like this). By ranges: see get.sql.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, topic, status, version, progress, stage, message, step, key, scope, scope_id, flow_id, locked_by, priority,
           retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at,
           claimed_at
    FROM {schema}._jobs WHERE id = asked.id
    UNION ALL
    (SELECT id, topic, 'completed', version, 100.0, stage, message, step, key, scope, scope_id, flow_id, locked_by,
           priority, retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at,
           claimed_at
    FROM {schema}._jobs_archive WHERE id >= asked.id AND id <= asked.id ORDER BY id LIMIT 1)
) j
