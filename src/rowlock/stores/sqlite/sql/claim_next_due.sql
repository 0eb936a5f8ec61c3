SELECT min(run_at) FROM _jobs WHERE status = 'pending' AND NOT ready
