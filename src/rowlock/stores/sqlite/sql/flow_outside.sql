SELECT j.id, j.status, j.line FROM json_each(:ids) s CROSS JOIN _jobs j ON j.id = s.value
UNION ALL
SELECT a.id, 'completed', NULL FROM json_each(:ids) s CROSS JOIN _jobs_archive a ON a.id = s.value
