SELECT id, revision, created, updated, expires_at, data FROM {schema}._jobs_records
WHERE kind = $1::text AND ($2::text[] IS NULL OR id = ANY ($2::text[]))
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
  AND id > $3::text
ORDER BY id
LIMIT $4::int
