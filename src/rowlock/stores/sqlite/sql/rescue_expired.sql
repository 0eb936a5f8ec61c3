SELECT {row} FROM _jobs j
WHERE locked_until IS NOT NULL AND locked_until < :now
ORDER BY locked_until LIMIT :limit
