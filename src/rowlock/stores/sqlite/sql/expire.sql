UPDATE _jobs
SET status = 'expired', ready = 0, finished_at = :now, updated = :now, last_error = :error, fingerprint = NULL
WHERE n = :n
