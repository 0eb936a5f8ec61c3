SELECT id, status, run_at, created FROM _jobs WHERE id = ?
