-- Notes, at most $1 of them, become totals here, and rollups by what this answers: see postgres/rollups.py.
WITH taken AS MATERIALIZED (SELECT ctid AS tid FROM {schema}._jobs_counts LIMIT $1::int FOR UPDATE SKIP LOCKED),
folded AS (
    DELETE FROM {schema}._jobs_counts WHERE ctid = ANY (ARRAY(SELECT tid FROM taken)) RETURNING *
),
added AS (
    INSERT INTO {schema}._jobs_totals AS t (
        topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost)
    SELECT coalesce(topic, ''), sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
           sum(execution_us), sum(retried), sum(lost)
    FROM folded WHERE enqueued = 0 AND deleted = 0 GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0
    ORDER BY 1
    ON CONFLICT (topic) DO UPDATE SET
        completed = t.completed + excluded.completed, failed = t.failed + excluded.failed,
        expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled,
        executions = t.executions + excluded.executions, execution_us = t.execution_us + excluded.execution_us,
        retried = t.retried + excluded.retried, lost = t.lost + excluded.lost
),
{minutes}
SELECT (SELECT count(*) FROM folded)::int, topic, minute * 60, counts, waits, waits_n, runs, runs_n FROM minutes
