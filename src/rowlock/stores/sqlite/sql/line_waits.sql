-- How many jobs of a line are live, counted up to three. One condition for each index.
SELECT (SELECT count(*) FROM _jobs WHERE line = ?1 AND line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL)
     + (SELECT count(*) FROM (SELECT 1 FROM _jobs WHERE line = ?1 AND line IS NOT NULL AND status = 'blocked' LIMIT 2))
