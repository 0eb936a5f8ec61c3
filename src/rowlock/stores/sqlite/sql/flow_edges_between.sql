-- The edges with these children and parents: [[child, parent], …].
SELECT e.child, e.parent, e.flow_id, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result, e.error
FROM json_each(?) s CROSS JOIN _jobs_edges e
    ON e.child = json_extract(s.value, '$[0]') AND e.parent = json_extract(s.value, '$[1]')
ORDER BY e.child, e.call, e.place, e.parent
