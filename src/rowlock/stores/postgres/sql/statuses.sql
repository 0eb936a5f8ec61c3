-- By ranges: see get.sql.
SELECT j.id, j.status FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, status FROM {schema}._jobs_all WHERE id >= asked.id AND id <= asked.id ORDER BY id LIMIT 2
) j
