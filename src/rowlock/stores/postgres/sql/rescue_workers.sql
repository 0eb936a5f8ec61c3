WITH held AS MATERIALIZED (
    SELECT {row} FROM {schema}._jobs j
    WHERE j.locked_until > '-infinity' AND j.locked_by = ANY ($2::text[])  -- a range: see held_by.sql
    ORDER BY j.locked_until
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT {locked}, held.* FROM held
