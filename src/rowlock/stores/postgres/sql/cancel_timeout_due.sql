WITH held AS MATERIALIZED (
    SELECT {row} FROM {schema}._jobs j
    WHERE j.status = 'cancel_requested'
      AND j.cancel_requested_at < (SELECT clock_timestamp()) - $2::float8 * interval '1 second'
    ORDER BY j.cancel_requested_at
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT {locked}, held.* FROM held
