-- Seconds until the next nominal time of any schedule but these; $2: of those that have not come yet. No row: there is none.
SELECT extract(epoch FROM s.next_run_at - clock_timestamp())::float8 FROM {schema}._jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.id <> ALL ($1::uuid[])
  AND s.next_run_at > CASE WHEN $2::bool THEN clock_timestamp() ELSE '-infinity' END
ORDER BY s.next_run_at LIMIT 1
