-- How many jobs stand where, and how they have ended; one statement, one snapshot. Each branch goes along its own index
-- and counts up to a bound; the answer tells the branches apart, so that a bound that was reached is seen.
SELECT 'ready' AS branch, topic, 'pending' AS status, count(*) AS n, NULL AS ended
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_claim WHERE ready {of_topic} LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'due', topic, 'pending', count(*), NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_due WHERE status = 'pending' AND NOT ready LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'lease', topic, status, count(*), NULL
FROM (SELECT topic, status FROM _jobs INDEXED BY _jobs_lease WHERE locked_until IS NOT NULL LIMIT :bound)
GROUP BY topic, status
UNION ALL
SELECT 'waiting', topic, 'waiting', count(*), NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_aside WHERE status = 'waiting' LIMIT :bound) GROUP BY topic
UNION ALL
SELECT 'blocked', topic, 'blocked', count(*), NULL
FROM (SELECT topic FROM _jobs INDEXED BY _jobs_aside WHERE status = 'blocked' LIMIT :bound) GROUP BY topic
UNION ALL
SELECT NULL, topic, NULL, NULL, json_array(completed, failed, expired, cancelled, executions, execution_us)
FROM (SELECT * FROM _jobs_totals WHERE true {of_topic} ORDER BY topic LIMIT :topics)
