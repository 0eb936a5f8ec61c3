-- What of jobs is short, in the order of State's fields.
SELECT id, topic, status, version, progress, stage, message, step, key, scope, scope_id, flow_id, locked_by, priority,
       retries, max_retries, crashes, timeout, created, updated, run_at, expires_at, started_at, finished_at
FROM {schema}._jobs_all WHERE id = ANY ($1::uuid[])
