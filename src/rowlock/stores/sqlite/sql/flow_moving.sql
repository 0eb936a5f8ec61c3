-- Blocked jobs that go on without a person. Between the end of its parent and its own start, a job is blocked, too.
SELECT count(*) FROM _jobs j
WHERE j.flow_id = :id AND j.flow_id IS NOT NULL AND j.status = 'blocked'
  AND NOT EXISTS (SELECT 1 FROM _jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold')
  AND NOT EXISTS (
      SELECT 1 FROM _jobs_edges e CROSS JOIN _jobs p ON p.id = e.parent
      WHERE e.child = j.id AND e.call IS NULL AND e.ended IS NULL AND p.status = 'blocked')
