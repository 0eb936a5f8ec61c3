-- The edges in these lines, and whether no other edge leads to the child.
SELECT e.child, e.parent, e.flow_id, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result, e.error,
       NOT EXISTS (SELECT 1 FROM _jobs_edges o WHERE o.child = e.child AND o.parent <> e.parent)
FROM json_each(?) l CROSS JOIN _jobs_edges e ON e.line = l.value
