INSERT INTO _jobs_audit (at, "by", action, job_id, topic, reason, data, bulk)
VALUES (:at, :by, :action, :job_id, :topic, :reason, :data, :bulk)
