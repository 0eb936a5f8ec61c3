-- How jobs stand: those of :ids, and those that stand in :lines and that others wait for. The last column: no true condition has
-- led to it.
WITH noted AS MATERIALIZED (
    SELECT e.parent AS id FROM json_each(:lines) l CROSS JOIN _jobs_edges e ON e.line = l.value
    UNION SELECT value FROM json_each(:ids)
)
SELECT n.id, coalesce(j.status, iif(a.id IS NULL, NULL, 'completed')), iif(j.id IS NULL, a.result, NULL),
       substr(j.last_error, 1, 10000),
       coalesce(j.status = 'cancelled', 0)
           AND EXISTS (SELECT 1 FROM _jobs_edges e WHERE e.child = n.id AND e.verdict = 'untaken')
FROM noted n LEFT JOIN _jobs j ON j.id = n.id LEFT JOIN _jobs_archive a ON a.id = n.id
