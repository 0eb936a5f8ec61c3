-- All edges that lead to these jobs.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error
FROM unnest($1::uuid[]) AS s (id) JOIN {schema}._jobs_edges e ON e.child = s.id
ORDER BY e.child, e.call, e.place, e.parent
