SELECT j.id, j.topic, 'completed', 0, j.version, j.retries, j.max_retries, j.key, j.locked_by, NULL,
       j.finished_at, j.scope, j.scope_id, j.history, j.history_dropped, EXISTS (SELECT 1 FROM _jobs a WHERE a.id = j.id)
FROM _jobs_archive j WHERE j.id < :before ORDER BY j.id DESC LIMIT :limit
