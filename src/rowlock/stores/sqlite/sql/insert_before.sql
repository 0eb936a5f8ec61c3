SELECT coalesce(max(n), 0) FROM _jobs
