SELECT j.id, j.status FROM _jobs j WHERE j.flow_id = :id AND j.flow_id IS NOT NULL
UNION ALL
SELECT a.id, 'completed' FROM _jobs_archive a WHERE a.flow_id = :id AND a.flow_id IS NOT NULL
