SELECT id, at, by, action, job_id::text, topic, reason, data, bulk::text FROM {schema}._jobs_audit
WHERE {whose} AND ($1::bigint IS NULL OR id < $1::bigint)
  AND ($3::uuid IS NULL OR bulk = $3::uuid) AND ($4::uuid IS NULL OR job_id = $4::uuid)
  AND ($5::text IS NULL OR by = $5::text) AND ($6::text IS NULL OR action = $6::text)
  AND ($7::timestamptz IS NULL OR at >= $7::timestamptz)
ORDER BY id DESC
LIMIT $2::int
