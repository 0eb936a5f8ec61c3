UPDATE _jobs
SET status = :status, ready = :ready, run_at = coalesce(:run_at, run_at), retries = retries + :charged,
    crashes = crashes + :crashed, last_error = coalesce(:error, last_error), finished_at = :finished_at,
    fingerprint = NULL,
    locked_by = NULL, locked_until = NULL, updated = :now
WHERE n = :n
