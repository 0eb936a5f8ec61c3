-- The newest starts of all rates that still count, at most $1.
SELECT rule, value, {schema}._jobs_us(at), n FROM {schema}._jobs_starts
WHERE until > (SELECT clock_timestamp()) ORDER BY until DESC LIMIT $1::int
