SELECT {row} FROM _jobs j
WHERE expires_at IS NOT NULL AND status = 'pending' AND expires_at <= :now
ORDER BY expires_at LIMIT :limit
