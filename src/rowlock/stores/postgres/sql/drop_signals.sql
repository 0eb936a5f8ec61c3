-- Of jobs that are gone. An id may have been used twice, and the other job is still there.
DELETE FROM {schema}._jobs_signals s
WHERE s.job_id = ANY ($1::uuid[]) AND NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.id = s.job_id)
