-- How many jobs of limited topics are due, counted up to a bound.
SELECT t.topic, (SELECT count(*) FROM (SELECT 1 FROM _jobs j WHERE j.ready AND j.topic = t.topic LIMIT ?))
FROM _jobs_topics t WHERE t.limited
