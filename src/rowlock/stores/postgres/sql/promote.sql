-- Makes pending jobs that have come due ready, and counts the waits that are over: `resume_due` finds those.
-- $2: the run_at after which to begin, see claim_bounds.py.
WITH meter AS MATERIALIZED (
    SELECT {dead_due} AS due, clock_timestamp() AS at
),
picked AS MATERIALIZED (
    SELECT ctid AS tid, status FROM {schema}._jobs
    WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at <= (SELECT at FROM meter)
      AND run_at > coalesce($2::timestamptz, '-infinity')
    ORDER BY run_at
    LIMIT $1::int
    FOR UPDATE SKIP LOCKED
),
promoted AS (
    UPDATE {schema}._jobs SET ready = true
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked WHERE status = 'pending')) RETURNING run_at
)
SELECT promoted, oldest, {dead_due} - meter.due AS dead, meter.at, (
    SELECT count(*)::int FROM picked WHERE status = 'waiting') AS waits
FROM meter CROSS JOIN (SELECT count(*)::int AS promoted, min(run_at) AS oldest FROM promoted OFFSET 0) summary
