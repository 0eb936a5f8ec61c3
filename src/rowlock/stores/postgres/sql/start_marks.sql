-- heartbeat.sql for what start marks are: runs of the same number and of one worker, whose leases stay as they are. A
-- quarter of its price: the guard is in the UPDATE itself, which waits for whoever holds a row and then looks again. No
-- index holds started_at.
UPDATE {schema}._jobs SET started_at = coalesce(started_at, clock_timestamp())
WHERE id = ANY ($1::uuid[]) AND version = $2::int AND locked_by = $3::text AND status = 'processing'
RETURNING id
