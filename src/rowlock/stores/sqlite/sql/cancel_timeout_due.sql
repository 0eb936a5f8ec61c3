SELECT {row} FROM _jobs j
WHERE status = 'cancel_requested' AND cancel_requested_at < :since
ORDER BY cancel_requested_at LIMIT :limit
