-- Of a job that is gone. An id may have been used twice, and the other job is still there.
DELETE FROM {schema}._jobs_steps
WHERE job_id = $1::uuid AND NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.id = $1::uuid)
