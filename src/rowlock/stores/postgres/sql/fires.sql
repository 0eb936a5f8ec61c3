-- The newest fires of each schedule, below a time.
SELECT s.id, f.fire_at, f.at, f.kind, f.job_id, f.reason, f.detail
FROM unnest($1::uuid[]) AS s (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}._jobs_fires f
    WHERE f.schedule_id = s.id AND ($2::timestamptz IS NULL OR f.fire_at < $2)
    ORDER BY f.fire_at DESC LIMIT $3::int) f
