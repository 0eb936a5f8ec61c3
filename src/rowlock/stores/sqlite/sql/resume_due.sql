SELECT {row} FROM _jobs j
WHERE status = 'waiting' AND NOT ready AND run_at <= :now
ORDER BY run_at LIMIT :limit
