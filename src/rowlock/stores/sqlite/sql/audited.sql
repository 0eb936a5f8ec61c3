SELECT id, at, "by", action, job_id, topic, reason, data FROM _jobs_audit
WHERE (:before IS NULL OR id < :before)
ORDER BY id DESC
LIMIT :limit
