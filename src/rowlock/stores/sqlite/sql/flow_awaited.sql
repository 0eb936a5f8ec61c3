SELECT 1 FROM _jobs_edges e WHERE e.line = ? AND e.parent = ? AND (e.ended IS NULL OR (e.verdict = 'hold' AND EXISTS (
    SELECT 1 FROM _jobs c WHERE c.id = e.child AND c.status = 'blocked'))) LIMIT 1
