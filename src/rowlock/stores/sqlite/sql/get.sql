-- One statement, one snapshot: a job that is being completed is seen here or there. Not by the view _jobs_all, which
-- older versions of SQLite would read whole.
SELECT j.id, topic, template_version, payload, status, priority, run_at, expires_at, j.key, scope, scope_id, tags, trace,
       step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version, locked_by,
       locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at, 1 + version + coalesce(json_array_length(history), 0) + history_dropped
FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT j.id, topic, template_version, payload, 'completed', priority, run_at, expires_at, j.key, scope, scope_id, tags,
       trace, step, 100.0, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
       locked_by, NULL, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated, claimed_at,
       started_at, finished_at, 2 + version + coalesce(json_array_length(history), 0) + history_dropped
FROM json_each(:ids) i CROSS JOIN _jobs_archive j ON j.id = i.value
