-- The edges in these lines ($1) that don't say how their parents stand: $2 and $3, NULL: the parent is live. At most $4. An edge
-- from a parent that is gone keeps its end. CASE keeps each `IN` a mere filter, which looks into a hash table: a join would
-- compare each edge with each parent. The last column: no other edge leads to the child.
WITH p AS MATERIALIZED (SELECT p.id, p.ended FROM unnest($2::uuid[], $3::text[]) AS p (id, ended))
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error,
       NOT EXISTS (SELECT FROM {schema}._jobs_edges o WHERE o.child = e.child AND o.parent <> e.parent)
FROM {schema}._jobs_edges e
WHERE e.line = ANY ($1::text[])
  AND CASE WHEN e.ended IS NULL THEN e.parent IN (SELECT id FROM p WHERE ended IS NOT NULL)
           ELSE e.parent IN (SELECT id FROM p WHERE ended IS DISTINCT FROM 'deleted')
                AND (e.parent, e.ended) NOT IN (SELECT id, ended FROM p WHERE ended IS NOT NULL) END
ORDER BY e.child, e.parent LIMIT $4::int
