-- One statement, one snapshot: a job that is being completed is seen here or there. Not by the view _jobs_all, which
-- older versions of SQLite would read whole.
SELECT {columns} FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT {archived} FROM json_each(:ids) i CROSS JOIN _jobs_archive j ON j.id = i.value
