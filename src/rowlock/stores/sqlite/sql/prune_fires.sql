DELETE FROM _jobs_fires WHERE (schedule_id, fire_at) IN (
    SELECT schedule_id, fire_at FROM _jobs_fires WHERE job_id IS NULL AND at < :before LIMIT :limit)
