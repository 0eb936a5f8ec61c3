-- Of jobs that are gone. An id may have been used twice, and the other job is still there.
DELETE FROM _jobs_signals
WHERE job_id IN (SELECT i.value FROM json_each(?) i WHERE NOT EXISTS (SELECT 1 FROM _jobs j WHERE j.id = i.value))
