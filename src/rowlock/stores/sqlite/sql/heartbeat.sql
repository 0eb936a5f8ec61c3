UPDATE _jobs
SET locked_until = max(locked_until, :until),
    started_at = CASE WHEN :started THEN coalesce(started_at, :now) ELSE started_at END
WHERE n = :n
