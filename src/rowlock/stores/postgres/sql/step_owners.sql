-- Of steps and of signals.
SELECT s.job_id, EXISTS (SELECT 1 FROM {schema}._jobs j WHERE j.id = s.job_id)
                 OR EXISTS (SELECT 1 FROM {schema}._jobs_archive a WHERE a.id = s.job_id)
FROM (
    (SELECT job_id FROM {schema}._jobs_steps WHERE job_id < $1::uuid ORDER BY job_id DESC LIMIT $2::int)
    UNION
    (SELECT job_id FROM {schema}._jobs_signals WHERE job_id < $1::uuid ORDER BY job_id DESC LIMIT $2::int)
    ORDER BY job_id DESC LIMIT $2::int
) s
ORDER BY s.job_id DESC
