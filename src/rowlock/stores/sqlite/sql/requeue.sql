UPDATE _jobs
SET status = 'pending', ready = :ready, run_at = :run_at, retries = iif(:undo, retries, 0),
    crashes = iif(:undo, crashes, 0), expires_at = iif(:undo, expires_at, NULL), progress = 0, stage = NULL, message = NULL,
    result = NULL, finished_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
    fingerprint = NULL, priority = :priority, payload = coalesce(:payload, payload), tags = :tags,
    updated = :now
WHERE n = :n
