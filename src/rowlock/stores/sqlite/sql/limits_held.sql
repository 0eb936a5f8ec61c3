-- How many jobs of these topics are held by workers, by share. A waiting job that is cancelled has no lease.
SELECT topic, share, count(*) FROM _jobs
WHERE locked_until IS NOT NULL AND topic IN (SELECT value FROM json_each(?)) GROUP BY topic, share
