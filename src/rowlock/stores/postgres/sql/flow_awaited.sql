-- Which of these jobs ($2) have children that still wait for their end, or are held because of it. $1: their lines.
SELECT DISTINCT e.parent::text FROM {schema}._jobs_edges e
WHERE e.line = ANY ($1::text[]) AND e.parent = ANY ($2::uuid[]) AND (e.ended IS NULL OR (e.verdict = 'hold' AND EXISTS (
    SELECT FROM {schema}._jobs c WHERE c.id = e.child AND c.status = 'blocked')))
