-- Which topics ($1) have limits ($2). A claim that was decided before this does nothing.
WITH turned AS (UPDATE {schema}._jobs_limits SET epoch = epoch + 1 RETURNING 1)
INSERT INTO {schema}._jobs_topics AS t (topic, limited)
SELECT s.topic, s.limited FROM unnest($1::text[], $2::bool[]) AS s (topic, limited), turned ORDER BY s.topic
ON CONFLICT (topic) DO UPDATE SET limited = excluded.limited WHERE t.limited <> excluded.limited
