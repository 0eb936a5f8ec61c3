INSERT INTO _jobs_counts (at, topic, requeued, deleted) VALUES (?, ?, ?, ?)
