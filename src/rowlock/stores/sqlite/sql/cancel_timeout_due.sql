SELECT n, id, version, locked_by, claimed_at, started_at, topic FROM _jobs
WHERE status = 'cancel_requested' AND cancel_requested_at < ?
ORDER BY cancel_requested_at LIMIT ?
