WITH picked AS MATERIALIZED (
    SELECT ctid AS tid FROM {schema}._jobs
    WHERE status = 'pending' AND expires_at IS NOT NULL AND expires_at <= (SELECT clock_timestamp())
    ORDER BY expires_at
    LIMIT $2::int
    FOR UPDATE SKIP LOCKED
),
ended AS (
    UPDATE {schema}._jobs j SET
        status = 'expired', ready = false, finished_at = clock_timestamp(), updated = clock_timestamp(), last_error = $3::text,
        fingerprint = NULL,  -- see group_failures
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_build_object(
            'at', {schema}._jobs_us(clock_timestamp()), 'event', 'expired', 'status', 'expired', 'version', j.version,
            'by', $1::text))
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, expired)
    SELECT clock_timestamp(), topic, count(*) FROM ended GROUP BY topic
)
SELECT id FROM ended
