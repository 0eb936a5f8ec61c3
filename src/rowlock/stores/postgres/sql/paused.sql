SELECT topic, paused_at, paused_until, paused_reason, paused_by FROM {schema}._jobs_topics
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > clock_timestamp())
ORDER BY topic
