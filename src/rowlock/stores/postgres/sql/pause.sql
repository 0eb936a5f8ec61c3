WITH paused AS (
    INSERT INTO {schema}._jobs_topics (topic, paused_at, paused_until, paused_reason, paused_by)
    VALUES ($1::text, clock_timestamp(), $4::timestamptz, $3::text, $2::text)
    ON CONFLICT (topic) DO UPDATE SET
        paused_at = excluded.paused_at, paused_until = excluded.paused_until,
        paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
    RETURNING topic, paused_at, paused_until
)
INSERT INTO {schema}._jobs_audit (at, by, action, topic, reason, data)
SELECT paused_at, $2::text, 'pause', topic, $3::text, json_build_object('until', {schema}._jobs_us(paused_until))
FROM paused
