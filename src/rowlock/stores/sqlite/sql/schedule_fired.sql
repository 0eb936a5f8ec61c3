SELECT 1 FROM _jobs_fires WHERE schedule_id = ? AND fire_at = ? AND job_id IS NOT NULL
