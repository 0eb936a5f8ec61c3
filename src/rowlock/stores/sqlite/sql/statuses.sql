-- As get.sql, without what is large.
SELECT j.id, status FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT j.id, 'completed' FROM json_each(:ids) i CROSS JOIN _jobs_archive j ON j.id = i.value
