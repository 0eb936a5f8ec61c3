WITH picked AS MATERIALIZED (
    SELECT ctid AS tid FROM {schema}._jobs
    WHERE status = 'pending' AND NOT ready AND run_at <= (SELECT clock_timestamp())
    ORDER BY run_at
    LIMIT $1::int
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}._jobs SET ready = true WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
