UPDATE _jobs
SET status = 'pending', ready = 1, run_at = :now, retries = 0, crashes = 0, progress = 0, stage = NULL, message = NULL,
    result = NULL, expires_at = NULL, finished_at = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
    fingerprint = NULL,
    updated = :now
WHERE n = :n
