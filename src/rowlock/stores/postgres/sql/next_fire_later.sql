-- The same, of the times that have not come yet.
SELECT extract(epoch FROM s.next_run_at - clock_timestamp())::float8 FROM {schema}._jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.next_run_at > (SELECT clock_timestamp()) AND s.id <> ALL ($1::uuid[])
ORDER BY s.next_run_at LIMIT 1
