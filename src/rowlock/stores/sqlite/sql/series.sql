-- Rollups of a span and a topic ('' is all), and what is not folded yet: one statement, so that nothing is missed or counted
-- twice. Notes are read up to a bound: they are many only if nobody has folded for long.
SELECT at / 1000000, enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted, waits, runs
FROM _jobs_rollups WHERE span = :span AND topic = :topic AND at >= :since AND at < :until
UNION ALL
SELECT at / 60000000 * 60, sum(enqueued), sum(completed), sum(failed), sum(expired), sum(cancelled), sum(retried), sum(lost),
       sum(requeued), sum(deleted), waits, runs
FROM (SELECT * FROM _jobs_counts WHERE at >= :since AND at < :until {of_topic} LIMIT 20000)
GROUP BY at / 60000000, CASE WHEN runs IS NULL THEN 0 ELSE n END
