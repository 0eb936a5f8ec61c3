SELECT id, status, version, locked_by, history FROM {schema}._jobs_all WHERE id = ANY ($1::uuid[])
