SELECT id, 'completed', run_at, created FROM _jobs_archive WHERE id = ?
