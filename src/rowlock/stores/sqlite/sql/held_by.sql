-- Along the leases, which are few: what is running now, by all workers.
SELECT id, version, started_at IS NOT NULL FROM _jobs
WHERE locked_until IS NOT NULL AND locked_by = ?
ORDER BY locked_until
