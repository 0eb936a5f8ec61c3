-- A pause that has run out is over already, and stays as it is.
UPDATE _jobs_topics SET paused_at = NULL, paused_until = NULL, paused_reason = NULL, paused_by = NULL
WHERE topic = :topic AND paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > :now)
