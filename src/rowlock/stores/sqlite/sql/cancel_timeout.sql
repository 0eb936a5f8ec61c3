UPDATE _jobs
SET status = 'cancelled', finished_at = :now, updated = :now, locked_by = NULL, locked_until = NULL
WHERE n = :n
