SELECT n, id, version, topic FROM _jobs
WHERE expires_at IS NOT NULL AND status = 'pending' AND expires_at <= ?
ORDER BY expires_at LIMIT ?
