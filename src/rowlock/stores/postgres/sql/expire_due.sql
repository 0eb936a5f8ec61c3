WITH held AS MATERIALIZED (
    SELECT {row} FROM {schema}._jobs j
    WHERE j.status = 'pending' AND j.expires_at IS NOT NULL AND j.expires_at <= (SELECT clock_timestamp())
    ORDER BY j.expires_at
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT {locked}, held.* FROM held
