-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT {row} FROM {schema}._jobs j
    WHERE {due}
    ORDER BY j.{since}
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT {locked}, held.* FROM held
