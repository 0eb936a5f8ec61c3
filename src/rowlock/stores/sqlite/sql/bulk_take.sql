SELECT id, reached FROM _jobs_bulk
WHERE status = 'running' AND (:id IS NULL OR id = :id)
ORDER BY moved_at
LIMIT 1
