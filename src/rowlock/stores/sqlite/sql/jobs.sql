-- Jobs by id, wherever they are, for the operators' verbs.
SELECT j.id, j.n, j.topic, j.status, j.version, j.scope, j.scope_id, j.key, j.ready, j.priority, j.run_at, j.tags
FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT a.id, a.n, a.topic, 'completed', a.version, a.scope, a.scope_id, a.key, 0, a.priority, a.run_at, a.tags
FROM json_each(:ids) i CROSS JOIN _jobs_archive a ON a.id = i.value
