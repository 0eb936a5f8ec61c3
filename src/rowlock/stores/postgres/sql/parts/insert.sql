-- Insert many jobs. Jobs whose id or live key is taken are left out; the store asks `existing` for them. Batches with keys
-- are sorted by them, so that two batches can't deadlock. After $16 the client may have asked again, so nothing is
-- inserted: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($16::timestamptz, 'infinity') AS in_time,
           {schema}._jobs_first_id(now - interval '1 hour') AS low,
           {schema}._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
s AS (
    SELECT s.* FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::float8[], $7::timestamptz[], $8::text[],
        $9::text[], $10::text[], $11::int[], $12::int[], $13::float8[], $14::text[], $15::text[]
    ) WITH ORDINALITY AS s (id, topic, payload, priority, run_at, delay, expires_at, key,
                            scope, scope_id, template_version, max_retries, timeout, tags, trace, n)
),
ins AS (
    INSERT INTO {schema}._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray)
    SELECT s.id, s.topic, s.payload::json, 'pending', s.priority,
           coalesce(s.run_at, now + s.delay * interval '1 second'),
           coalesce(s.run_at <= now, s.delay = 0),
           s.expires_at, s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout, s.tags::jsonb,
           s.trace, now, now, s.id < low OR s.id >= high
    FROM s, clock WHERE in_time
    {order}
    {conflict}
    RETURNING id, topic
),
noted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, enqueued)
    SELECT (SELECT now FROM clock), topic, count(*) FROM ins GROUP BY topic
)
SELECT (SELECT now FROM clock) AS now,
       -- An insert may wait for another transaction's key. Once its rows are there, a repeat waits for this transaction.
       -- If they came after $16, the repeat may have been first: an error takes them back.
       CASE WHEN count(*) > 0 AND clock_timestamp() > $16::timestamptz
            THEN ('too late by ' || (clock_timestamp() - $16::timestamptz))::int
            ELSE count(*)::int END AS inserted,
       -- NULL if all are new
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids
FROM ins
