-- Removes starts that count no more. $1: at most so many.
DELETE FROM {schema}._jobs_starts WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}._jobs_starts WHERE until < clock_timestamp() ORDER BY until LIMIT $1::int FOR UPDATE SKIP LOCKED))
RETURNING 1
