-- The write lock is held since the candidates were read: they are all still ready.
UPDATE _jobs
SET status = 'processing', ready = 0, version = version + 1, locked_by = :worker, locked_until = :until,
    claimed_at = :now, started_at = :started, progress = 0, stage = NULL, message = NULL, updated = :now
WHERE n IN (SELECT value FROM json_each(:rows))
RETURNING n, id, topic, template_version, payload, status, priority, run_at, expires_at, key, scope, scope_id, tags,
    trace, step, progress, stage, message, result, last_error, retries, max_retries, crashes, timeout, version,
    locked_by, locked_until, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, updated,
    claimed_at, started_at, finished_at,
    1 + version + coalesce(json_array_length(history), 0) + history_dropped
