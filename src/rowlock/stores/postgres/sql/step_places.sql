-- The limit, which no job reaches, makes the planner take the index for each job.
SELECT s.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT job_id, name, n, position, state FROM {schema}._jobs_steps WHERE job_id >= asked.id AND job_id <= asked.id
    ORDER BY job_id, name, n LIMIT 100000
) s
ORDER BY s.job_id, s.position, s.name, s.n
