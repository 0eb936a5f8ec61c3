SELECT topic, paused_at, paused_until, paused_reason, paused_by FROM _jobs_topics
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > ?)
ORDER BY topic
