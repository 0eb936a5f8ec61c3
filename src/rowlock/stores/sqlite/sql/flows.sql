-- Flows, the newest first.
SELECT f.id, f.name, f."by", f.jobs, f.created FROM _jobs_flows f
WHERE (:ids IS NULL OR f.id IN (SELECT value FROM json_each(:ids))) AND (:before IS NULL OR f.id < :before)
  AND (:name IS NULL OR f.name = :name)
ORDER BY f.id DESC LIMIT :limit
