-- Add at most $1 notes to the totals. rollups.py adds the answer to the rollups. A requeue's note is negative. If the
-- clock was set back, a run counts as 0 seconds, not less.
WITH taken AS MATERIALIZED (SELECT ctid AS tid FROM {schema}._jobs_counts LIMIT $1::int FOR UPDATE SKIP LOCKED),
notes AS (
    DELETE FROM {schema}._jobs_counts WHERE ctid = ANY (ARRAY(SELECT tid FROM taken)) RETURNING *
),
added AS (
    INSERT INTO {schema}._jobs_totals AS t (
        topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
        requeued_expired, requeued_cancelled)
    SELECT coalesce(topic, ''), sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
           sum(greatest(execution_us, 0)), sum(retried), sum(lost), -sum(least(failed, 0)), -sum(least(expired, 0)),
           -sum(least(cancelled, 0))
    FROM notes WHERE enqueued = 0 AND deleted = 0 GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0
    ORDER BY 1
    ON CONFLICT (topic) DO UPDATE SET
        completed = t.completed + excluded.completed, failed = t.failed + excluded.failed,
        expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled,
        executions = t.executions + excluded.executions, execution_us = t.execution_us + excluded.execution_us,
        retried = t.retried + excluded.retried, lost = t.lost + excluded.lost,
        requeued_failed = t.requeued_failed + excluded.requeued_failed,
        requeued_expired = t.requeued_expired + excluded.requeued_expired,
        requeued_cancelled = t.requeued_cancelled + excluded.requeued_cancelled
),
{minutes}
SELECT (SELECT count(*) FROM notes)::int, topic, minute * 60, counts, waits, waits_n, runs, runs_n FROM minutes
