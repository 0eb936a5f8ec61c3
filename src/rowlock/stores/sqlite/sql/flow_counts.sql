SELECT j.status, count(*),
       sum(j.status = 'cancelled' AND EXISTS (SELECT 1 FROM _jobs_edges e WHERE e.child = j.id AND e.verdict = 'untaken')),
       sum(j.status = 'blocked' AND EXISTS (SELECT 1 FROM _jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold'))
FROM _jobs j WHERE j.flow_id = :id AND j.flow_id IS NOT NULL GROUP BY j.status
UNION ALL
SELECT 'completed', count(*), 0, 0 FROM _jobs_archive a WHERE a.flow_id = :id AND a.flow_id IS NOT NULL HAVING count(*) > 0
