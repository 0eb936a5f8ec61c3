-- For events: without results. Only a job whose `step` says so has any.
SELECT job_id, name, n, position, function, state, NULL, error, retries, cancelable, version, started_at, finished_at,
       NULL
FROM _jobs_steps
WHERE job_id = :id AND state IN ('succeeded', 'failed') AND (
    EXISTS (SELECT 1 FROM _jobs WHERE id = :id AND step IS NOT NULL)
    OR EXISTS (SELECT 1 FROM _jobs_archive WHERE id = :id AND step IS NOT NULL))
