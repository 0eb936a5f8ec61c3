SELECT DISTINCT e.line FROM {schema}._jobs_edges e WHERE e.line = ANY ($1::text[])
