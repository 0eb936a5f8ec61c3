SELECT next_run_at FROM _jobs_schedules
WHERE next_run_at IS NOT NULL AND next_run_at > :after AND id NOT IN (SELECT value FROM json_each(:skip))
ORDER BY next_run_at LIMIT 1
