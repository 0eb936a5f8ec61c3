-- How many jobs have which status, and how jobs have ended, in one snapshot. Each branch reads its own index, up to a bound
-- ($1). The answer names the branch, so that a caller sees which bound was reached.
-- `waited`: for how many seconds the oldest job that was counted has been ready: since run_at or its creation, whichever
-- came later.
WITH counted AS MATERIALIZED (
    SELECT topic, count(*) AS jobs, min(run_at) AS oldest
    FROM (SELECT j.topic, j.run_at FROM {schema}._jobs j
          -- Jobs that are ready for their last run, to undo what they have done. There are few of these.
          WHERE j.ready {of_topic} AND j.id NOT IN (
              SELECT c.id FROM {schema}._jobs c WHERE c.status = 'cancel_requested' AND c.locked_until IS NULL)
          LIMIT $1::int) s GROUP BY topic
)
-- The index doesn't have `created`. It matters only if a client gave a run_at in the past: then the rows are read.
SELECT 'ready' AS branch, c.topic, 'pending' AS status, c.jobs AS n,
       extract(epoch FROM greatest((SELECT clock_timestamp()) - CASE WHEN (
           SELECT j.created FROM {schema}._jobs j WHERE j.ready AND j.topic = c.topic AND j.run_at = c.oldest LIMIT 1
       ) <= c.oldest THEN c.oldest ELSE (
           SELECT min(greatest(s.run_at, s.created)) FROM (
               SELECT j.run_at, j.created FROM {schema}._jobs j WHERE j.ready AND j.topic = c.topic LIMIT $1::int) s
       ) END, interval '0'))::float8 AS waited, NULL::bigint[] AS ended
FROM counted c
UNION ALL
SELECT 'due', topic, 'pending', count(*), NULL, NULL
FROM (SELECT j.topic FROM {schema}._jobs j WHERE j.status = 'pending' AND NOT j.ready ORDER BY j.run_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'lease', topic, status, count(*), NULL, NULL
FROM (SELECT j.topic, j.status FROM {schema}._jobs j WHERE j.locked_until IS NOT NULL ORDER BY j.locked_until
      LIMIT $1::int) s
GROUP BY topic, status
UNION ALL  -- waiting jobs that are being cancelled have no lease
SELECT 'cancelling', topic, 'cancel_requested', count(*), NULL, NULL
FROM (SELECT j.topic FROM {schema}._jobs j WHERE j.status = 'cancel_requested' AND j.locked_until IS NULL
      ORDER BY j.cancel_requested_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'waiting', topic, 'waiting', count(*), NULL, NULL
FROM (SELECT j.topic FROM {schema}._jobs j WHERE j.status = 'waiting' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT 'blocked', topic, 'blocked', count(*), NULL, NULL
FROM (SELECT j.topic FROM {schema}._jobs j WHERE j.status = 'blocked' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT NULL, topic, NULL, NULL, NULL,
       ARRAY[completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
             requeued_expired, requeued_cancelled]
FROM (SELECT * FROM {schema}._jobs_totals j WHERE true {of_topic} ORDER BY topic LIMIT $2::int) s
UNION ALL  -- notes that are not folded yet, added as in fold_counts.sql
SELECT NULL, coalesce(topic, ''), NULL, NULL, NULL,
       ARRAY[sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
             sum(greatest(execution_us, 0)), sum(retried), sum(lost), -sum(least(failed, 0)), -sum(least(expired, 0)),
             -sum(least(cancelled, 0))]::bigint[]
FROM {schema}._jobs_counts j WHERE enqueued = 0 AND deleted = 0 {of_topic} GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0
