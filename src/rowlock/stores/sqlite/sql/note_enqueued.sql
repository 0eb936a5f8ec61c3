INSERT INTO _jobs_counts (at, topic, enqueued) VALUES (?, ?, ?)
