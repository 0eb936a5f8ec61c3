SELECT job_id, at FROM _jobs_throttles WHERE line = ?
