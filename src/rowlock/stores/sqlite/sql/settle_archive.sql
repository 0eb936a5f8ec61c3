INSERT INTO _jobs_archive (
    id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, updated, run_at,
    expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at, locked_by, key, scope, scope_id,
    flow_id, schedule_id, step, stage, trace, history_dropped, tags, message, cancel_reason, payload, result, last_error,
    history)
SELECT
    id, topic, template_version, priority, version, retries, max_retries, crashes, timeout, created, ?, run_at,
    expires_at, claimed_at, ?, ?, cancel_requested_at, fire_at, locked_by, key, scope, scope_id,
    flow_id, schedule_id, step, stage, trace, history_dropped, tags, message, cancel_reason, payload, ?, last_error,
    history
FROM _jobs WHERE n = ?
-- Only a caller's own id that was used twice can be there already: its first completion stands.
ON CONFLICT (id) DO NOTHING
