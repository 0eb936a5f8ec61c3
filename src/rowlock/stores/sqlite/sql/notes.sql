SELECT n, topic, at / 1000000, enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted,
       waits, runs
FROM _jobs_counts ORDER BY n LIMIT ?
