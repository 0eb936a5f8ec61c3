WITH held AS MATERIALIZED (
    SELECT {row} FROM {schema}._jobs j
    WHERE j.locked_until < (SELECT least(clock_timestamp(), coalesce($2::timestamptz, 'infinity')))
    ORDER BY j.locked_until
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT {locked}, held.* FROM held
