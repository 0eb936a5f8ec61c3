-- settle.sql for what nearly every batch is: all completed. A third cheaper; see docs/decisions/0004.
s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[]) AS s (id, run, outcome, ran) ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.run, s.outcome, s.ran, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.* FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
gone AS (
    DELETE FROM {schema}._jobs WHERE ctid = ANY (ARRAY(
        SELECT tid FROM held WHERE version = run AND (status = 'processing' OR status = 'cancel_requested')
    )) RETURNING id
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
{archived},
counted AS (
    INSERT INTO {schema}._jobs_counts (topic, completed, executions, execution_us)
    SELECT topic, count(*), count(took), coalesce(extract(epoch FROM sum(took)) * 1000000, 0)
    FROM archived GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
)
