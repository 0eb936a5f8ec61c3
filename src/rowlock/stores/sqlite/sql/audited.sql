SELECT id, at, "by", action, job_id, topic, reason, data, bulk FROM _jobs_audit
WHERE {whose} AND (:before IS NULL OR id < :before)
  AND (:bulk IS NULL OR bulk = :bulk) AND (:job_id IS NULL OR job_id = :job_id)
  AND (:by IS NULL OR "by" = :by) AND (:action IS NULL OR action = :action) AND (:since IS NULL OR at >= :since)
ORDER BY id DESC
LIMIT :limit
