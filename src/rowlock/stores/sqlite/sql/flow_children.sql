SELECT e.child, e.parent, e.ended FROM json_each(?) l CROSS JOIN _jobs_edges e ON e.line = l.value
