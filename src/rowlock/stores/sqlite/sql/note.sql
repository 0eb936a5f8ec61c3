INSERT INTO _jobs_counts (at, topic, completed, failed, expired, cancelled, retried, lost, waits, runs)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
