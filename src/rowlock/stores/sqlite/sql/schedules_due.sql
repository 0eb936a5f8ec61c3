SELECT {schedule_columns} FROM _jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.next_run_at <= :now AND s.id NOT IN (SELECT value FROM json_each(:skip))
ORDER BY s.next_run_at LIMIT :limit
