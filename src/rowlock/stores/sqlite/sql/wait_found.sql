-- A wait as it is stored, if it is, and how many signals the job has got.
SELECT coalesce(j.signals, 0), s.state, s.result, s.deadline
FROM _jobs j LEFT JOIN _jobs_steps s ON s.job_id = j.id AND s.name = :name AND s.n = :n
WHERE j.id = :id
