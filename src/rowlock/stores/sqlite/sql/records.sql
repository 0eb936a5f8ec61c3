SELECT id, revision, created, updated, expires_at, data FROM _jobs_records
WHERE kind = :kind AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
  AND (expires_at IS NULL OR expires_at > :now)
  AND id > :after
ORDER BY id
LIMIT :limit
