SELECT DISTINCT e.line FROM json_each(?) l CROSS JOIN _jobs_edges e ON e.line = l.value
