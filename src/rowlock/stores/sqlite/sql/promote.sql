UPDATE _jobs SET ready = 1
WHERE n IN (SELECT n FROM _jobs WHERE status = 'pending' AND NOT ready AND run_at <= ? ORDER BY run_at LIMIT ?)
