-- Locks jobs that a new flow waits for, in the order of ids, and lets their ends be noted. Answers [[id, status, line], …]; of
-- jobs in the archive, the status is completed.
WITH s AS MATERIALIZED (SELECT value::uuid AS id FROM json_array_elements_text($1::text::json) ORDER BY 1),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, j.line FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
noted AS (
    UPDATE {schema}._jobs j SET line = replace(j.id::text, '-', '') || ':job'
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM held WHERE line IS NULL)) RETURNING j.id
),
old AS MATERIALIZED (
    SELECT a.id FROM s CROSS JOIN LATERAL (
        SELECT a.id FROM {schema}._jobs_archive a WHERE a.id >= s.id AND a.id <= s.id ORDER BY a.id LIMIT 1
    ) a WHERE s.id NOT IN (SELECT id FROM held)
)
SELECT coalesce(json_agg(json_build_array(id, status, coalesce(line, replace(id::text, '-', '') || ':job'))), '[]')::text
FROM (SELECT id, status, line FROM held UNION ALL SELECT id, 'completed', NULL FROM old) found
WHERE (SELECT count(*) FROM noted) >= 0
