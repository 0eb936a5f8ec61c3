-- Nothing is written where nothing is new. A topic that has no row needs none to say that it has no table of its own.
INSERT INTO _jobs_topics (topic, backoff)
SELECT w.key, w.value FROM json_each(:tables) w LEFT JOIN _jobs_topics t ON t.topic = w.key
WHERE t.backoff IS NOT w.value
ON CONFLICT (topic) DO UPDATE SET backoff = excluded.backoff
