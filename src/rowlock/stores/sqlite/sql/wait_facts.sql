-- What a move must know of a job's waits: core.waits.WaitFacts. :n NULL: all callbacks of this name that have no answer yet.
SELECT (SELECT count(*) FROM _jobs_signals WHERE job_id = :id AND wait IS NULL),
       EXISTS (SELECT 1 FROM _jobs_signals WHERE job_id = :id AND signal_id = :signal_id AND signal_id IS NOT NULL),
       count(*), max(deadline IS NULL), max(deadline),
       EXISTS (SELECT 1 FROM _jobs_steps WHERE job_id = :id AND state = 'succeeded' AND substr(name, 1, 1) <> '@'),
       (SELECT result FROM _jobs_steps WHERE job_id = :id AND name = :wait AND state = 'running' ORDER BY n DESC LIMIT 1)
FROM _jobs_steps WHERE job_id = :id AND name = :callback AND n = coalesce(:n, n)
  AND (:n IS NOT NULL OR NOT EXISTS (
      SELECT 1 FROM _jobs_signals g WHERE g.job_id = :id AND g.signal_id = _jobs_steps.name || '#' || _jobs_steps.n))
