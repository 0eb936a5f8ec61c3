SELECT {row} FROM _jobs j
WHERE locked_until IS NOT NULL AND locked_by IN (SELECT value FROM json_each(:workers))
ORDER BY locked_until LIMIT :limit
