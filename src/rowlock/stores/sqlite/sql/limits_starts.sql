-- The starts of a rate and a value, in its windows.
SELECT rule, value, at, n FROM _jobs_starts WHERE rule = ? AND value = ? AND until > ?
