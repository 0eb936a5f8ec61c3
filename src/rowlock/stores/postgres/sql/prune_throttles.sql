DELETE FROM {schema}._jobs_throttles WHERE line = ANY (ARRAY(
    SELECT line FROM {schema}._jobs_throttles WHERE until <= (SELECT clock_timestamp()) ORDER BY until LIMIT $1::int
    FOR UPDATE SKIP LOCKED))
RETURNING 1
