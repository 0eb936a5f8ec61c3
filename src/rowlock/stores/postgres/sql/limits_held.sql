-- How many jobs of these topics are held by workers, by share. A waiting job that is cancelled has no lease.
SELECT topic, share, count(*)::int FROM {schema}._jobs
WHERE locked_until IS NOT NULL AND topic = ANY ($1::text[]) GROUP BY topic, share
