-- Of steps and of signals.
SELECT s.job_id, EXISTS (SELECT 1 FROM _jobs j WHERE j.id = s.job_id)
                 OR EXISTS (SELECT 1 FROM _jobs_archive a WHERE a.id = s.job_id)
FROM (SELECT job_id FROM (SELECT job_id FROM _jobs_steps WHERE job_id < :before ORDER BY job_id DESC LIMIT :limit)
      UNION
      SELECT job_id FROM (SELECT job_id FROM _jobs_signals WHERE job_id < :before ORDER BY job_id DESC LIMIT :limit)
      ORDER BY 1 DESC LIMIT :limit) s
