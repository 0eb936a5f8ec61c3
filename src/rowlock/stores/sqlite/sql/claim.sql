-- The write lock is held since the candidates were read: they are all still ready. What is set here needs no answer,
-- and columns that most jobs don't use come as one: each column of an answer costs Python 0.2 µs.
UPDATE _jobs
SET status = 'processing', ready = 0, version = version + 1, locked_by = :worker, locked_until = :until,
    claimed_at = :now, started_at = :started, progress = 0, stage = NULL, message = NULL, updated = :now
WHERE n IN (SELECT value FROM json_each(:rows))
RETURNING id, topic, template_version, payload, priority, run_at, retries, max_retries, crashes, timeout, version,
    created,
    CASE WHEN coalesce(history, last_error, key, scope, scope_id, tags, trace, expires_at, step, result,
                       cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at) IS NOT NULL
         THEN json_array(expires_at, key, scope, scope_id, json(tags), trace, step, json(result), last_error,
                         cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at,
                         coalesce(json_array_length(history), 0) + history_dropped) END
