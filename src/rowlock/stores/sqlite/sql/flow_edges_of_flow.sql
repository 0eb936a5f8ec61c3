SELECT e.child, e.parent, e.flow_id, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, NULL, NULL
FROM _jobs_edges e WHERE e.flow_id = ? ORDER BY e.child, e.call, e.place, e.parent
