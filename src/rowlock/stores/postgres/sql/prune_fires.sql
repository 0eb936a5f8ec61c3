DELETE FROM {schema}._jobs_fires
WHERE (schedule_id, fire_at) IN (
    SELECT schedule_id, fire_at FROM {schema}._jobs_fires
    WHERE job_id IS NULL AND at < clock_timestamp() - $2::float8 * interval '1 second' LIMIT $1::int)
RETURNING 1
