-- How many jobs of limited topics are due, counted up to $1.
SELECT t.topic, (SELECT count(*)::int FROM (
    SELECT FROM {schema}._jobs j WHERE j.ready AND j.topic = t.topic LIMIT $1::int) counted)
FROM {schema}._jobs_topics t WHERE t.limited
