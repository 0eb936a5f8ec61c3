INSERT INTO _jobs_topics (topic, limited) VALUES (?, ?)
ON CONFLICT (topic) DO UPDATE SET limited = excluded.limited
