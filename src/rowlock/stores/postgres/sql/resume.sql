WITH resumed AS (
    UPDATE {schema}._jobs_topics SET paused_at = NULL, paused_until = NULL, paused_reason = NULL, paused_by = NULL
    WHERE topic = $1::text AND paused_at IS NOT NULL
      AND (paused_until IS NULL OR paused_until > clock_timestamp())  -- else the pause is over already
    RETURNING topic
)
INSERT INTO {schema}._jobs_audit (at, by, action, topic, reason)
SELECT clock_timestamp(), $2::text, 'resume', topic, $3::text FROM resumed
RETURNING topic
