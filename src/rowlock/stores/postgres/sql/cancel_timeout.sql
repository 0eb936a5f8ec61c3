WITH picked AS MATERIALIZED (
    SELECT ctid AS tid FROM {schema}._jobs
    WHERE status = 'cancel_requested'
      AND cancel_requested_at < (SELECT clock_timestamp()) - $3::float8 * interval '1 second'
    ORDER BY cancel_requested_at
    LIMIT $2::int
    FOR UPDATE SKIP LOCKED
),
ended AS (
    UPDATE {schema}._jobs j SET
        status = 'cancelled', finished_at = clock_timestamp(), updated = clock_timestamp(),
        locked_by = NULL, locked_until = NULL,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(clock_timestamp()), 'event', 'cancel_timed_out', 'status', 'cancelled',
            'version', j.version, 'by', $1::text, 'worker', j.locked_by,
            'claimed_at', {schema}._jobs_us(j.claimed_at), 'started_at', {schema}._jobs_us(j.started_at))))
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, cancelled)
    SELECT clock_timestamp(), topic, count(*) FROM ended GROUP BY topic
)
SELECT id FROM ended
