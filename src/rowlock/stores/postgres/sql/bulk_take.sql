-- The process that has locked the row works on it. $2: how long to wait for a job, or a key, of another transaction.
SELECT {bulk_columns}, b.reached, set_config('lock_timeout', $2::text, true)
FROM {schema}._jobs_bulk b
WHERE b.status = 'running' AND ($1::uuid IS NULL OR b.id = $1::uuid)
ORDER BY b.moved_at
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED
