SELECT seq, data FROM _jobs_signals WHERE job_id = ? AND name = ? AND wait IS NULL ORDER BY seq LIMIT 1
