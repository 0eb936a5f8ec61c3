SELECT job_id FROM _jobs_once WHERE line = ?
