-- Rows that don't change are neither written nor locked. A topic without a row needs none if it has no table of its own.
INSERT INTO {schema}._jobs_topics AS kept (topic, backoff)
SELECT w.topic, w.backoff
FROM (SELECT s.topic, s.backoff::float8[] AS backoff FROM unnest($1::text[], $2::text[]) AS s (topic, backoff)) w
LEFT JOIN {schema}._jobs_topics t ON t.topic = w.topic
WHERE t.backoff IS DISTINCT FROM w.backoff
ORDER BY w.topic  -- two workers that start at once lock the rows in the same order
ON CONFLICT (topic) DO UPDATE SET backoff = excluded.backoff
WHERE kept.backoff IS DISTINCT FROM excluded.backoff  -- another worker may have been first
