DELETE FROM {schema}._jobs_records
WHERE kind = $1::text AND id = $2::text AND ($3::int IS NULL OR revision = $3::int)
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING 1
