-- The edges in these lines ($1) that don't say how their parents stand: $2 and $3, NULL: the parent is live. At most $4. An edge
-- from a parent that is gone keeps its end.
SELECT e.child::text, e.parent::text
FROM {schema}._jobs_edges e JOIN unnest($2::uuid[], $3::text[]) AS p (id, ended) ON p.id = e.parent
WHERE e.line = ANY ($1::text[]) AND e.ended IS DISTINCT FROM p.ended
  AND (e.ended IS NULL OR p.ended IS DISTINCT FROM 'deleted')
ORDER BY e.child, e.parent LIMIT $4::int
