-- Takes the lines in which something has ended or come, and locks them against other calls of `advance`, in one order.
WITH taken AS MATERIALIZED (
    DELETE FROM {schema}._jobs_ends WHERE n = ANY (ARRAY(
        SELECT n FROM {schema}._jobs_ends ORDER BY n LIMIT $1::int FOR UPDATE SKIP LOCKED))
    RETURNING line
),
lines AS MATERIALIZED (SELECT DISTINCT line FROM taken ORDER BY line)
SELECT line, pg_advisory_xact_lock(('x' || left(line, 16))::bit(64)::bigint) FROM lines
