-- The jobs that stand in these lines and have started others, and those others.
SELECT e.child::text, e.parent::text FROM {schema}._jobs_edges e
WHERE e.owner = ANY ($1::text[]) AND e.owner IS NOT NULL AND e.call IS NOT NULL ORDER BY e.child, e.place
