-- $1: how many at most; $2: seconds that completed jobs are kept; $3, $4: the same for other statuses.
WITH old AS MATERIALIZED (
    SELECT h.tid FROM unnest($3::text[], $4::float8[]) AS keep (status, seconds) CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.status = keep.status AND j.finished_at IS NOT NULL
          AND j.finished_at <= (SELECT clock_timestamp()) - keep.seconds * interval '1 second'
        ORDER BY j.finished_at
        LIMIT $1::int
        FOR UPDATE SKIP LOCKED
    ) h
    LIMIT $1::int
),
gone AS (DELETE FROM {schema}._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM old)) RETURNING 1),
old_archived AS MATERIALIZED (
    SELECT a.id FROM {schema}._jobs_archive a
    WHERE a.finished_at <= (SELECT clock_timestamp()) - $2::float8 * interval '1 second'
    LIMIT $1::int - (SELECT count(*) FROM old)
),
gone_archived AS (
    DELETE FROM {schema}._jobs_archive WHERE id = ANY (ARRAY(SELECT id FROM old_archived)) RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int + (SELECT count(*) FROM gone_archived)::int
