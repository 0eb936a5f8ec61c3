-- The starts of a rate and a value, after the third and until the fourth: the newest parts of a window.
SELECT rule, value, at, n FROM _jobs_starts
WHERE rule = ?1 AND value = ?2 AND bucket > ?3 AND at > ?3 AND at <= ?4 ORDER BY bucket DESC LIMIT ?5
