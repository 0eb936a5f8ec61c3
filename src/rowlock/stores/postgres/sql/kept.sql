-- Newest first, along the primary key; one snapshot, so that a job that is being completed is not seen twice.
SELECT j.id, j.topic, j.status, j.ready, j.version, j.retries, j.max_retries, j.key, j.locked_by, j.locked_until,
       j.finished_at, j.scope, j.scope_id, j.history, j.history_dropped,
       EXISTS (SELECT 1 FROM {schema}._jobs_archive a WHERE a.id = j.id) AS twice
FROM {schema}._jobs j WHERE j.id < $1::uuid ORDER BY j.id DESC LIMIT $2::int
