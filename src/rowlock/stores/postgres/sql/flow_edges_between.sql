-- The edges with these children ($1) and parents ($2): by the primary key, whatever else leads to the children.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error
FROM unnest($1::uuid[], $2::uuid[]) AS s (child, parent)
JOIN {schema}._jobs_edges e ON e.child = s.child AND e.parent = s.parent
ORDER BY e.child, e.call, e.place, e.parent
