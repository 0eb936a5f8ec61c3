SELECT job_id, seq, at, event, status, version, "by", data FROM _jobs_events WHERE job_id = ? ORDER BY seq
