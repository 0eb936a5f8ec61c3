-- The newest starts of all rates that still count.
SELECT rule, value, at, n FROM _jobs_starts WHERE until > ? ORDER BY until DESC LIMIT ?
