-- All edges of a flow, without what is stored of results.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, NULL::text, NULL::text
FROM {schema}._jobs_edges e WHERE e.flow_id = $1::uuid ORDER BY e.child, e.call, e.place, e.parent
