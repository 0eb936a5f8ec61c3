UPDATE {schema}._jobs_records SET
    revision = revision + 1, updated = clock_timestamp(), expires_at = $4::timestamptz, data = $3::text::json
WHERE kind = $1::text AND id = $2::text AND revision = $5::int
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING 1
