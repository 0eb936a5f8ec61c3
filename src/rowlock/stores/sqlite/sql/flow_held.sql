SELECT DISTINCT e.child FROM json_each(?) s CROSS JOIN _jobs_edges e ON e.child = s.value
WHERE e.verdict = 'hold'
  AND NOT EXISTS (SELECT 1 FROM _jobs_edges o WHERE o.child = e.child AND o.call IS NULL AND o.ended IS NULL)
