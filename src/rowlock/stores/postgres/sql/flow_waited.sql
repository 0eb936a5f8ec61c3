-- Which of these jobs have waited for others.
SELECT DISTINCT e.child::text FROM {schema}._jobs_edges e WHERE e.child = ANY ($1::uuid[]) AND e.call IS NULL
