SELECT min(run_at) FROM (
    SELECT min(run_at) AS run_at FROM _jobs WHERE status = 'pending' AND NOT ready
    UNION ALL
    SELECT min(run_at) FROM _jobs WHERE status = 'waiting' AND NOT ready)
