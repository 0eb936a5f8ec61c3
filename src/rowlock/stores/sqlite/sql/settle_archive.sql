-- Completed jobs, guarded by status, version AND worker (NULL: whoever it is). settle_delete takes them out of _jobs.
-- :rows is [[id, version, result, microseconds that the handler ran, or null if it never started], …]
INSERT INTO _jobs_archive (
    id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, updated, run_at,
    expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at, locked_by, key, scope, scope_id,
    flow_id, schedule_id, step, stage, trace, history_dropped, tags, message, cancel_reason, payload, result,
    last_error, history, stray, log, log_dropped)
SELECT
    j.id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, :now, run_at,
    expires_at, claimed_at, coalesce(max(claimed_at, :now - json_extract(s.value, '$[3]')), started_at), :now,
    cancel_requested_at, fire_at, locked_by, j.key, scope, scope_id, flow_id, schedule_id, step, stage, trace,
    history_dropped, tags, message, cancel_reason, payload, json_extract(s.value, '$[2]'), last_error, history, stray,
    log, log_dropped
FROM json_each(:rows) s CROSS JOIN _jobs j ON j.id = json_extract(s.value, '$[0]')
WHERE version = json_extract(s.value, '$[1]') AND (:worker IS NULL OR locked_by = :worker)
  AND (status = 'processing' OR status = 'cancel_requested')
-- Only a caller's own id that was used twice can be there already: its first completion stands.
ON CONFLICT (id) DO NOTHING
