SELECT id, at, "by", action, job_id, topic, reason, data, bulk FROM _jobs_audit
WHERE {of_bulk} AND (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit
