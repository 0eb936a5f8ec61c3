-- heartbeat.sql for start marks: runs of one version and one worker, whose leases stay as they are. It costs a quarter of
-- heartbeat, because the UPDATE has the guard itself: it waits for a row's lock, then checks the row again. No index has
-- started_at.
UPDATE {schema}._jobs SET started_at = coalesce(started_at, clock_timestamp())
WHERE id = ANY ($1::uuid[]) AND version = $2::int AND locked_by = $3::text AND status = 'processing'
RETURNING id
