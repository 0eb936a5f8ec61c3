-- The first jobs of a lane ($1, $2) whose limits are by no field; at most $3.
SELECT -j.priority, {schema}._jobs_us(j.run_at), j.id::text FROM {schema}._jobs j
WHERE j.ready AND j.topic = $1::text AND j.template_version = $2::int
  AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
ORDER BY -j.priority, j.run_at, j.id LIMIT $3::int
