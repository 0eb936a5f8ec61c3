SELECT fire_at, at, kind, job_id, reason, detail FROM _jobs_fires
WHERE schedule_id = :id AND fire_at < :before ORDER BY fire_at DESC LIMIT :limit
