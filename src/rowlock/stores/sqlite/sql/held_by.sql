-- Along the leases, which are few: what is running now, by all workers.
SELECT id, version, started_at IS NOT NULL, locked_by FROM _jobs INDEXED BY _jobs_lease
WHERE locked_until IS NOT NULL AND locked_by IN (SELECT value FROM json_each(?1))
ORDER BY locked_until LIMIT ?2
