-- How jobs stand: those of $2, and those that stand in the lines of $1 and that others wait for. By ranges in the archive: see
-- read.sql. A job that is in neither table is gone. The last column: no true condition has led to it.
WITH noted AS MATERIALIZED (
    SELECT DISTINCT e.parent AS id FROM {schema}._jobs_edges e WHERE e.line = ANY ($1::text[])
    UNION SELECT id FROM unnest($2::uuid[]) AS s (id)
)
SELECT n.id::text, coalesce(j.status, a.status), coalesce(j.result, a.result), coalesce(j.error, a.error),
       j.status = 'cancelled' AND EXISTS (
           SELECT FROM {schema}._jobs_edges e WHERE e.child = n.id AND e.verdict = 'untaken') IS TRUE
FROM noted n
LEFT JOIN LATERAL (
    SELECT j.status, NULL::text AS result, left(j.last_error, 10000) AS error FROM {schema}._jobs j WHERE j.id = n.id
) j ON true
LEFT JOIN LATERAL (
    SELECT 'completed' AS status, a.result::text AS result, NULL::text AS error FROM {schema}._jobs_archive a
    WHERE a.id >= n.id AND a.id <= n.id ORDER BY a.id LIMIT 1
) a ON j.status IS NULL
