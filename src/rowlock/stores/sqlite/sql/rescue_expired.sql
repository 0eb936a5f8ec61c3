SELECT n, id, topic, status, version, retries, max_retries, crashes, locked_by, claimed_at, started_at FROM _jobs
WHERE locked_until IS NOT NULL AND locked_until < :now
ORDER BY locked_until LIMIT :limit
