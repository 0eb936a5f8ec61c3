DELETE FROM _jobs_workers WHERE name IN (SELECT value FROM json_each(?))
