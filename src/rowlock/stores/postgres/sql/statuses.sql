SELECT id, status FROM {schema}._jobs_all WHERE id = ANY ($1::uuid[])
