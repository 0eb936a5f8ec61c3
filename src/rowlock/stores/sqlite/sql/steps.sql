SELECT job_id, name, n, position, function, state, result, error, retries, cancelable, version, started_at, finished_at,
       deadline
FROM _jobs_steps WHERE job_id = ? ORDER BY position, name, n
