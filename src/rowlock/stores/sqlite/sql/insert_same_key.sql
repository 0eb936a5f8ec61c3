-- The columns and the predicate of the index _jobs_live_key, to the letter. Jobs in a line share their keys.
SELECT id, status, run_at, created FROM _jobs
WHERE topic = ? AND coalesce(scope, '') = coalesce(?, '') AND coalesce(scope_id, '') = coalesce(?, '') AND key = ?
  AND key IS NOT NULL AND finished_at IS NULL AND line_seq IS NULL
