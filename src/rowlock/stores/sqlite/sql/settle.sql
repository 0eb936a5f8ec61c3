UPDATE _jobs
SET status = :status, ready = :ready, run_at = coalesce(:run_at, run_at), retries = coalesce(:retries, retries),
    last_error = coalesce(:error, last_error), cancel_reason = coalesce(cancel_reason, :reason),
    fingerprint = :fingerprint, waits_for = :waits_for, expires_at = CASE WHEN :has_run THEN NULL ELSE expires_at END,
    started_at = :started_at, finished_at = :finished_at, locked_by = NULL, locked_until = NULL, updated = :now
WHERE n = :n
