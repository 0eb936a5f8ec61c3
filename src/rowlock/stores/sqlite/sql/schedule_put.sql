INSERT INTO _jobs_schedules ({schedule_columns}) VALUES ({schedule_values})
ON CONFLICT (id) DO UPDATE SET {schedule_changes}
