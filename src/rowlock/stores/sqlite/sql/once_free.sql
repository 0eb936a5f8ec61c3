DELETE FROM _jobs_once WHERE job_id = ?
