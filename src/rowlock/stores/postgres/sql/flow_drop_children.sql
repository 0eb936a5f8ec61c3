DELETE FROM {schema}._jobs_edges WHERE child = ANY ($1::uuid[]) AND call IS NOT NULL
