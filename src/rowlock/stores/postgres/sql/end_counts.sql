-- What there is, up to a bound, and what was counted, in one snapshot. What was pruned or deleted stays counted.
WITH counted AS (
    SELECT sum(completed) AS completed, sum(failed) AS failed, sum(expired) AS expired, sum(cancelled) AS cancelled
    FROM (SELECT completed, failed, expired, cancelled FROM {schema}._jobs_totals WHERE topic = ''
          UNION ALL SELECT completed, failed, expired, cancelled FROM {schema}._jobs_counts) c
),
dead AS (
    SELECT s.status, (SELECT count(*) FROM (
        SELECT 1 FROM {schema}._jobs j WHERE j.finished_at IS NOT NULL AND j.status = s.status LIMIT $1::int) d) AS n
    FROM unnest(ARRAY['failed', 'expired', 'cancelled']) AS s (status)
)
SELECT 'completed', (SELECT count(*) FROM (SELECT 1 FROM {schema}._jobs_archive LIMIT $1::int) a),
       coalesce(c.completed, 0)::bigint FROM counted c
UNION ALL
SELECT d.status, d.n, coalesce(CASE d.status WHEN 'failed' THEN c.failed WHEN 'expired' THEN c.expired
                                             ELSE c.cancelled END, 0)::bigint
FROM dead d CROSS JOIN counted c
