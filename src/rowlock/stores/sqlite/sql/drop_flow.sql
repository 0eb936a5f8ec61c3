DELETE FROM _jobs_flows WHERE id = :id
  AND NOT EXISTS (SELECT 1 FROM _jobs j WHERE j.flow_id = :id AND j.flow_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM _jobs_archive a WHERE a.flow_id = :id AND a.flow_id IS NOT NULL)
