UPDATE _jobs
SET status = 'expired', ready = 0, finished_at = :now, updated = :now, last_error = :error
WHERE n = :n
