-- As a range: see read.sql.
SELECT job_id, name, n, position, function, state, result, error, retries, cancelable, version, started_at, finished_at,
       deadline
FROM {schema}._jobs_steps WHERE job_id >= $1::uuid AND job_id <= $1::uuid
ORDER BY position, name, n
