UPDATE _jobs
SET status = 'pending', ready = :ready, run_at = :run_at, retries = 0, crashes = 0, progress = 0, stage = NULL, message = NULL,
    result = NULL, expires_at = NULL, finished_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
    fingerprint = NULL, priority = :priority, payload = coalesce(:payload, payload), tags = :tags,
    updated = :now
WHERE n = :n
