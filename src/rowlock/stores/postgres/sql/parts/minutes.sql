-- The counts of each topic and minute in `notes`, and how many durations are in each bucket (core/sketch.py). A requeue's
-- negative note lowers the totals only: here it counts as requeued.
timed AS MATERIALIZED (SELECT *, floor(date_part('epoch', at) / 60)::bigint AS minute FROM notes),
counted AS (
    SELECT topic, minute,
           ARRAY[sum(enqueued), sum(completed), sum(greatest(failed, 0)), sum(greatest(expired, 0)),
                 sum(greatest(cancelled, 0)), sum(retried), sum(lost),
                 -sum(least(failed, 0) + least(expired, 0) + least(cancelled, 0)), sum(deleted)]::bigint[] AS counts
    FROM timed GROUP BY topic, minute
),
waited AS (
    SELECT topic, minute, array_agg(bucket) AS waits, array_agg(n) AS waits_n
    FROM (SELECT topic, minute, {bucket} AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.waits) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
ran AS (
    SELECT topic, minute, array_agg(bucket) AS runs, array_agg(n) AS runs_n
    FROM (SELECT topic, minute, {bucket} AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.runs) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
minutes AS (
    SELECT topic, minute, counts, waits, waits_n, runs, runs_n
    FROM counted LEFT JOIN waited USING (topic, minute) LEFT JOIN ran USING (topic, minute)
)
