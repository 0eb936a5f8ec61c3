-- Newest first, along the index of ids; one snapshot, so that a job that is being completed is not seen twice.
SELECT j.id, j.topic, j.status, j.ready, j.version, j.retries, j.max_retries, j.key, j.locked_by, j.locked_until,
       j.finished_at, j.scope, j.scope_id, j.history, j.history_dropped, EXISTS (SELECT 1 FROM _jobs_archive a WHERE a.id = j.id)
FROM _jobs j WHERE j.id < :before ORDER BY j.id DESC LIMIT :limit
