-- For events: without results. Only a job whose `step` says so has any. By a range: see read.sql.
SELECT s.job_id, s.name, s.n, s.position, s.function, s.state, NULL AS result, s.error, s.retries, s.cancelable, s.version,
       s.started_at, s.finished_at, s.deadline
FROM {schema}._jobs_steps s
WHERE s.job_id >= $1::uuid AND s.job_id <= $1::uuid AND s.state IN ('succeeded', 'failed') AND (
    SELECT step FROM {schema}._jobs_all WHERE id >= $1::uuid AND id <= $1::uuid ORDER BY id LIMIT 1) IS NOT NULL
