SELECT job_id, seq, at, event, status, version, by, data FROM {schema}._jobs_events WHERE job_id = $1::uuid ORDER BY seq
