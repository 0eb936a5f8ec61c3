INSERT INTO _jobs_workers (name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen)
VALUES (:name, :host, :pid, :topics, :concurrency, :running, :lease, :stopping, :rowlock, :now, :now)
ON CONFLICT (name) DO UPDATE
SET host = excluded.host, pid = excluded.pid, topics = excluded.topics, concurrency = excluded.concurrency,
    running = excluded.running, lease = excluded.lease, stopping = excluded.stopping, rowlock = excluded.rowlock,
    seen = excluded.seen
