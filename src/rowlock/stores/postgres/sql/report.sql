INSERT INTO {schema}._jobs_workers AS w (
    name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen)
SELECT $1::text, $2::text, $3::int, $4::text[], $5::int, $6::int, $7::float8, $8::bool, $9::text, now, now
FROM (SELECT clock_timestamp() AS now) clock
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, topics = excluded.topics, concurrency = excluded.concurrency,
    running = excluded.running, lease = excluded.lease, stopping = excluded.stopping, rowlock = excluded.rowlock,
    seen = excluded.seen
RETURNING seen
