-- A time that made no job may get one later, by a backfill. One that has a job keeps it.
INSERT INTO _jobs_fires (schedule_id, fire_at, at, kind, job_id, reason, detail)
VALUES (:schedule_id, :fire_at, :at, :kind, :job_id, :reason, :detail)
ON CONFLICT (schedule_id, fire_at) DO UPDATE
SET at = excluded.at, kind = excluded.kind, job_id = excluded.job_id, reason = excluded.reason, detail = excluded.detail
WHERE job_id IS NULL
