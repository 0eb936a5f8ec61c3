-- Of the waits of this name that are open; or, with a number, of one callback.
UPDATE _jobs_steps SET deadline = :deadline
WHERE job_id = :id AND name = :name AND (n = :n OR (:n IS NULL AND state = 'running'))
