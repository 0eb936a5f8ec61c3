SELECT id, at, by, action, job_id::text, topic, reason, data, bulk::text FROM {schema}._jobs_audit
WHERE {of_bulk} AND ($1::bigint IS NULL OR id < $1::bigint)
ORDER BY id DESC
LIMIT $2::int
