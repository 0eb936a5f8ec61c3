-- settle.sql for the most common batch: completed runs of one version and one worker (NULL: any, but one has it). It costs two
-- thirds of settle (docs/decisions/0004), because the DELETE has the guard itself: it waits for a row's lock, then checks
-- the row again.
gone AS (
    DELETE FROM {schema}._jobs
    WHERE id = ANY ({ids}::uuid[]) AND version = {version}::int
      AND locked_by = coalesce({worker}::text, locked_by)
      AND (status = 'processing' OR status = 'cancel_requested'){plain}
    RETURNING *
),
held AS (SELECT 1 FROM gone),
done AS MATERIALIZED (
    SELECT * FROM unnest({ids}::uuid[], {outcomes}::text[], {ran}::float8[]) AS d (id, outcome, ran)
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
{archived},{ended}
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
           coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
    FROM archived GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality({ids}::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
)
