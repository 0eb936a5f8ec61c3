-- :rows is [[n, started_at, result], …]
INSERT INTO _jobs_archive (
    id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, updated, run_at,
    expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at, locked_by, key, scope, scope_id,
    flow_id, schedule_id, step, stage, trace, history_dropped, tags, message, cancel_reason, payload, result,
    last_error, history, stray, log, log_dropped)
SELECT
    j.id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, :now, run_at,
    expires_at, claimed_at, json_extract(s.value, '$[1]'), :now, cancel_requested_at, fire_at, locked_by, j.key, scope,
    scope_id, flow_id, schedule_id, step, stage, trace, history_dropped, tags, message, cancel_reason, payload,
    json_extract(s.value, '$[2]'), last_error, history, stray, log, log_dropped
FROM json_each(:rows) s CROSS JOIN _jobs j ON j.n = json_extract(s.value, '$[0]')
WHERE true  -- or SQLite would take ON CONFLICT for a part of the join
-- Only a caller's own id that was used twice can be there already: its first completion stands.
ON CONFLICT (id) DO NOTHING
