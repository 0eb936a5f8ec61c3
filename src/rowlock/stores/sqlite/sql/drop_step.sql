DELETE FROM _jobs_steps WHERE job_id = ? AND name = ? AND n = ?
