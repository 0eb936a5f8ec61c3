-- Seconds until the next nominal time of any schedule but these. No row: there is none.
SELECT extract(epoch FROM s.next_run_at - clock_timestamp())::float8 FROM {schema}._jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.id <> ALL ($1::uuid[])
ORDER BY s.next_run_at LIMIT 1
