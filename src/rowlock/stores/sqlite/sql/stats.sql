-- How many jobs stand where, and how they have ended; one statement, one snapshot. Each branch goes along its own index
-- and counts up to a bound; the answer tells the branches apart, so that a bound that was reached is seen.
-- `waited`: for how many seconds the job that waits for longest, of those that were counted, has been ready: since run_at
-- or since it was created, whichever came later.
WITH last_runs (n) AS MATERIALIZED (  -- waiting jobs that are cancelled: ready, but not pending
    SELECT n FROM _jobs INDEXED BY _jobs_cancelling WHERE status = 'cancel_requested' AND ready
),
crowded (yes) AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM _jobs INDEXED BY _jobs_claim WHERE ready {of_topic} LIMIT 1 OFFSET :bound - 1)
),
-- If all of them may be counted, the index has them by topic: no need to sort what was cut off, which takes twice as long.
-- `first`: the row that has this run_at, which SQLite takes for min().
counted (topic, jobs, oldest, first) AS MATERIALIZED (
    SELECT * FROM (
        SELECT topic, count(*), min(run_at), n FROM _jobs INDEXED BY _jobs_claim WHERE ready {of_topic}
          AND n NOT IN (SELECT n FROM last_runs)
        GROUP BY topic LIMIT (SELECT CASE WHEN yes THEN 0 ELSE -1 END FROM crowded)
    )
    UNION ALL
    SELECT topic, count(*), min(run_at), n FROM (
        SELECT topic, run_at, n FROM _jobs INDEXED BY _jobs_claim WHERE ready {of_topic}
          AND n NOT IN (SELECT n FROM last_runs)
        LIMIT (SELECT CASE WHEN yes THEN :bound ELSE 0 END FROM crowded)
    ) GROUP BY topic
)
-- The index doesn't have `created`. It matters only if a client gave a run_at that was over: then the rows are read.
SELECT 'ready' AS branch, c.topic, 'pending' AS status, c.jobs, max(:now - CASE WHEN j.created <= c.oldest THEN c.oldest ELSE (
           SELECT min(max(run_at, created)) FROM (
               SELECT run_at, created FROM _jobs INDEXED BY _jobs_claim WHERE ready AND topic = c.topic
                  AND n NOT IN (SELECT n FROM last_runs) LIMIT :bound)
       ) END, 0) / 1e6 AS waited, NULL AS ended
FROM counted c CROSS JOIN _jobs j ON j.n = c.first
UNION ALL
SELECT 'due', topic, 'pending', count(*), NULL, NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_due WHERE status = 'pending' AND NOT ready LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'lease', topic, status, count(*), NULL, NULL
FROM (SELECT topic, status FROM _jobs INDEXED BY _jobs_lease WHERE locked_until IS NOT NULL LIMIT :bound)
GROUP BY topic, status
UNION ALL  -- waiting jobs that are being cancelled
SELECT 'cancelling', topic, 'cancel_requested', count(*), NULL, NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_cancelling
      WHERE status = 'cancel_requested' AND locked_until IS NULL LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'waiting', topic, 'waiting', count(*), NULL, NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_aside WHERE status = 'waiting' LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'blocked', topic, 'blocked', count(*), NULL, NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_aside WHERE status = 'blocked' LIMIT :bound) GROUP BY topic
UNION ALL
SELECT NULL, topic, NULL, NULL, NULL,
       json_array(completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
                  requeued_expired, requeued_cancelled)
FROM (SELECT * FROM _jobs_totals WHERE true {of_topic} ORDER BY topic LIMIT :topics)
