UPDATE _jobs_records SET revision = revision + 1, updated = :now, expires_at = :expires_at, data = :data
WHERE kind = :kind AND id = :id AND revision = :revision AND (expires_at IS NULL OR expires_at > :now)
RETURNING 1
