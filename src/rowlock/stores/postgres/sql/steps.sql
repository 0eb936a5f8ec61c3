-- Each job's as a range: see read.sql.
SELECT s.job_id, s.name, s.n, s.position, s.function, s.state, s.result, s.error, s.retries, s.cancelable, s.version,
       s.started_at, s.finished_at, s.deadline
FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}._jobs_steps s WHERE s.job_id >= asked.id AND s.job_id <= asked.id) s
ORDER BY s.job_id, s.position, s.name, s.n
