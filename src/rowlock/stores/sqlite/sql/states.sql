-- What of jobs is short, in the order of State's fields. As get.sql.
SELECT j.id, topic, status, version, progress, stage, message, step, j.key, scope, scope_id, flow_id, locked_by, priority,
       retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at,
       claimed_at
FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT j.id, topic, 'completed', version, 100.0, stage, message, step, j.key, scope, scope_id, flow_id, locked_by,
       priority, retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at,
       claimed_at
FROM json_each(:ids) i CROSS JOIN _jobs_archive j ON j.id = i.value
