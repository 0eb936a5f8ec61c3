-- Along the leases, which are few: what is running now, by all workers. A range that holds all of them, for a plan made
-- while the table was empty would rather scan it than follow IS NOT NULL.
SELECT id, version, started_at IS NOT NULL AS started, locked_by FROM {schema}._jobs
WHERE locked_until > '-infinity' AND locked_by = ANY ($1::text[])
ORDER BY locked_until LIMIT $2::int
