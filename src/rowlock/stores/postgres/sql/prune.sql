-- $1: jobs at most. $2, $3: statuses and for how many seconds their jobs are kept; NULL: for ever. $4, $5, $6: the same for
-- topics with a retention of their own. The index is searched topic by topic, so that jobs that are kept are not read.
WITH RECURSIVE rule AS MATERIALIZED (SELECT * FROM unnest($2::text[], $3::float8[]) AS r (status, seconds)),
own AS MATERIALIZED (SELECT * FROM unnest($4::text[], $5::text[], $6::float8[]) AS o (status, topic, seconds)),
dead (status, topic) AS (
    SELECT status, '' FROM rule WHERE status <> 'completed'
    UNION ALL
    SELECT dead.status, (
        SELECT j.topic FROM {schema}._jobs j
        WHERE j.status = dead.status AND j.finished_at IS NOT NULL AND j.topic > dead.topic ORDER BY j.topic LIMIT 1)
    FROM dead WHERE dead.topic IS NOT NULL
),
done (status, topic) AS (
    SELECT status, '' FROM rule WHERE status = 'completed'
    UNION ALL
    SELECT done.status, (
        SELECT a.topic FROM {schema}._jobs_archive a WHERE a.topic > done.topic ORDER BY a.topic LIMIT 1)
    FROM done WHERE done.topic IS NOT NULL
),
kept AS MATERIALIZED (
    SELECT t.status, t.topic, (SELECT clock_timestamp()) - CASE WHEN own.topic IS NULL THEN rule.seconds
                                                                ELSE own.seconds END * interval '1 second' AS since
    FROM (SELECT * FROM dead UNION ALL SELECT * FROM done) t
    JOIN rule ON rule.status = t.status LEFT JOIN own ON own.status = t.status AND own.topic = t.topic
    WHERE t.topic <> ''
),
old AS MATERIALIZED (
    SELECT h.tid FROM (SELECT * FROM kept WHERE status <> 'completed' AND since IS NOT NULL) k CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.status = k.status AND j.topic = k.topic AND j.finished_at IS NOT NULL AND j.finished_at <= k.since
        ORDER BY j.finished_at
        LIMIT $1::int
        FOR UPDATE SKIP LOCKED
    ) h
    LIMIT $1::int
),
gone AS (DELETE FROM {schema}._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM old)) RETURNING id, step, signals),
old_archived AS MATERIALIZED (
    SELECT h.* FROM (SELECT * FROM kept WHERE status = 'completed' AND since IS NOT NULL) k CROSS JOIN LATERAL (
        SELECT a.id, a.ctid AS tid FROM {schema}._jobs_archive a WHERE a.topic = k.topic AND a.finished_at <= k.since
        ORDER BY a.finished_at
        LIMIT $1::int
    ) h
    LIMIT $1::int - (SELECT count(*) FROM old)
),
gone_archived AS (  -- see delete.sql
    DELETE FROM {schema}._jobs_archive
    WHERE ctid = ANY (ARRAY(SELECT tid FROM old_archived)) AND (id IN (SELECT id FROM old_archived)) IS TRUE
    RETURNING id, step
),
dropped_steps AS (  -- an id may have been used twice, and the other job is still there
    DELETE FROM {schema}._jobs_steps WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE step IS NOT NULL
        UNION ALL
        SELECT a.id FROM gone_archived a
        WHERE a.step IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.id = a.id)))
),
dropped_signals AS (  -- the archive does not say whether a job had any
    DELETE FROM {schema}._jobs_signals WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE signals IS NOT NULL
        UNION ALL
        SELECT a.id FROM gone_archived a WHERE NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.id = a.id)))
)
SELECT (SELECT count(*) FROM gone)::int + (SELECT count(*) FROM gone_archived)::int
