UPDATE _jobs
SET status = :status, ready = 0, finished_at = :finished_at, cancel_requested_at = :now, cancel_reason = :reason,
    updated = :now
WHERE n = :n
