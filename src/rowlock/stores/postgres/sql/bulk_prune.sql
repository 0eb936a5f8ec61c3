-- $1: rows at most. $2: seconds that previews are kept. $3: seconds that ended bulk actions are kept. The items of a bulk
-- action are deleted before it.
WITH old AS MATERIALIZED (
    SELECT b.id FROM {schema}._jobs_bulk b
    WHERE CASE WHEN b.status = 'preview' THEN b.created <= clock_timestamp() - $2::float8 * interval '1 second'
               ELSE b.finished_at <= clock_timestamp() - $3::float8 * interval '1 second' END
    ORDER BY b.id LIMIT 10
    FOR UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT i.bulk_id, i.job_id FROM old CROSS JOIN LATERAL (
        SELECT * FROM {schema}._jobs_bulk_items i WHERE i.bulk_id = old.id ORDER BY i.job_id LIMIT $1::int
    ) i
    LIMIT $1::int
),
gone AS (
    DELETE FROM {schema}._jobs_bulk_items
    WHERE (bulk_id, job_id) IN (SELECT bulk_id, job_id FROM picked) RETURNING 1
),
gone_whole AS (
    DELETE FROM {schema}._jobs_bulk
    WHERE id IN (SELECT old.id FROM old WHERE NOT EXISTS (
        SELECT 1 FROM {schema}._jobs_bulk_items i WHERE i.bulk_id = old.id))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int + (SELECT count(*) FROM gone_whole)::int
