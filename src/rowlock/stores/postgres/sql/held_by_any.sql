-- Along the leases, like held_by.
SELECT id, version, started_at IS NOT NULL AS started, locked_by FROM {schema}._jobs
WHERE locked_until > '-infinity' AND locked_by = ANY ($1::text[])
ORDER BY locked_until LIMIT $2::int
