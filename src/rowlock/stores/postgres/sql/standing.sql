SELECT id, status, version, history FROM {schema}._jobs_all WHERE id = ANY ($1::uuid[])
