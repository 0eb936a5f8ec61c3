SELECT j.id, j.topic, 'completed', false, j.version, j.retries, j.max_retries, j.key, j.locked_by, NULL::timestamptz,
       j.finished_at, j.scope, j.scope_id, j.history, j.history_dropped,
       EXISTS (SELECT 1 FROM {schema}._jobs a WHERE a.id = j.id) AS twice
FROM {schema}._jobs_archive j WHERE j.id < $1::uuid ORDER BY j.id DESC LIMIT $2::int
