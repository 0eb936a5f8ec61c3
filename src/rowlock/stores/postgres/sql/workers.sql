SELECT name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen
FROM {schema}._jobs_workers ORDER BY name
