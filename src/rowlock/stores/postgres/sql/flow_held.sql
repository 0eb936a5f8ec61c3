SELECT DISTINCT e.child::text FROM {schema}._jobs_edges e
WHERE e.child = ANY ($1::uuid[]) AND e.verdict = 'hold'
  AND NOT EXISTS (SELECT FROM {schema}._jobs_edges o WHERE o.child = e.child AND o.call IS NULL AND o.ended IS NULL)
