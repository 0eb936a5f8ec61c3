-- Whoever has the row locked works on it. $2: how long to wait for a job, or its key, that another transaction holds.
SELECT {columns}, b.reached, set_config('lock_timeout', $2::text, true),
       set_config('rowlock.bulk', b.id::text, true)  -- for the audit
FROM {schema}._jobs_bulk b
WHERE b.status = 'running' AND ($1::uuid IS NULL OR b.id = $1::uuid)
ORDER BY b.moved_at
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED
