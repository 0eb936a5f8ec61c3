-- By ranges: see read.sql.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, status, version, locked_by, history FROM {schema}._jobs_all
    WHERE id >= asked.id AND id <= asked.id ORDER BY id LIMIT 2
) j
