SELECT {schedule_columns} FROM _jobs_schedules s
WHERE s.name = :name AND coalesce(s.scope, '') = coalesce(:scope, '') AND coalesce(s.scope_id, '') = coalesce(:scope_id, '')
