INSERT INTO _jobs_audit (at, "by", action, job_id, topic, reason, data)
VALUES (:at, :by, :action, :job_id, :topic, :reason, :data)
