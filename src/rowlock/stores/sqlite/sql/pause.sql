INSERT INTO _jobs_topics (topic, paused_at, paused_until, paused_reason, paused_by)
VALUES (:topic, :now, :until, :reason, :by)
ON CONFLICT (topic) DO UPDATE
SET paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_reason = excluded.paused_reason,
    paused_by = excluded.paused_by
