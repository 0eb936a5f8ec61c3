DELETE FROM _jobs_records
WHERE kind = :kind AND id = :id AND (:revision IS NULL OR revision = :revision)
  AND (expires_at IS NULL OR expires_at > :now)
RETURNING 1
