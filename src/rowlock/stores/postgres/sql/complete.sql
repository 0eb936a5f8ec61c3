-- settle.sql for what nearly every batch is: runs of the same number and of one worker (NULL: whoever has them) that
-- have all completed. Two thirds of its price (docs/decisions/0004): the guard is in the DELETE itself, which waits for
-- whoever holds a row and then looks again.
gone AS (
    DELETE FROM {schema}._jobs
    WHERE id = ANY ($1::uuid[]) AND version = $2::int AND ($5::text IS NULL OR locked_by = $5::text)
      AND (status = 'processing' OR status = 'cancel_requested')
    RETURNING *
),
held AS (SELECT 1 FROM gone),
done AS MATERIALIZED (SELECT * FROM unnest($1::uuid[], $3::text[], $4::float8[]) AS d (id, outcome, ran)),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
{archived},
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
           coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
    FROM archived GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
)
