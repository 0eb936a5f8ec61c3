-- Rollups of a span ($1) and a topic ($2; '' is all), and the notes that are not folded yet. It is one statement, so that
-- nothing is missed or counted twice. Notes are read up to a bound: there are many only if none was folded for long.
WITH notes AS MATERIALIZED (
    (SELECT * FROM {schema}._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND {of_topic}
       AND runs IS NULL LIMIT 20000)
    UNION ALL
    (SELECT * FROM {schema}._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND {of_topic}
       AND runs IS NOT NULL LIMIT 1000)
),
{minutes}
SELECT date_part('epoch', at)::bigint, ARRAY[enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted],
       waits AS waits_packed, runs AS runs_packed, NULL::int[], NULL::int[], NULL::int[], NULL::int[]
FROM {schema}._jobs_rollups
WHERE span = $1::int AND topic = $2::text AND at >= $3::timestamptz AND at < $4::timestamptz
UNION ALL
SELECT minute * 60, counts, NULL, NULL, waits, waits_n, runs, runs_n FROM minutes
