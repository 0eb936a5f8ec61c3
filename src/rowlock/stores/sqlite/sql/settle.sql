UPDATE _jobs
SET status = :status, ready = :ready, run_at = coalesce(:run_at, run_at), retries = coalesce(:retries, retries),
    last_error = coalesce(:error, last_error), cancel_reason = coalesce(cancel_reason, :reason),
    fingerprint = :fingerprint,
    started_at = :started_at, finished_at = :finished_at, locked_by = NULL, locked_until = NULL, updated = :now
WHERE n = :n
