-- Insert many that differ in id, topic and payload only: what is the same for all of them comes once. They can't be there
-- already, so there is no ON CONFLICT, which adds a quarter to what a row costs. See insert_new in insert.py. How many of
-- which topic ($13, $14) has been counted: to do it here adds a tenth to what a single job costs. After $15 nobody waits for
-- the answer any more, so nothing is done: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($15::timestamptz, 'infinity') AS in_time, now + $5::float8 * interval '1 second' AS due,
           {schema}._jobs_first_id(now - interval '1 hour') AS low,
           {schema}._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
ins AS (
    INSERT INTO {schema}._jobs (
        id, topic, payload, status, priority, run_at, ready, template_version, max_retries, timeout, created, updated,
        stray)
    SELECT s.id, s.topic, s.payload, 'pending', $4::int, due, $5::float8 = 0, $6::int, $7::int, $8::float8, now, now,
           s.id < low OR s.id >= high
    FROM unnest($1::uuid[], $2::text[], $3::json[]) AS s (id, topic, payload), clock WHERE in_time
    RETURNING 1
),
noted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, enqueued)
    SELECT now, topic, n FROM unnest($13::text[], $14::int[]) AS t (topic, n), clock WHERE in_time
)
SELECT now, (SELECT count(*) FROM ins) AS inserted,
       -- ring.sql, if it is wanted, in the same commit: a worker that waits has the job a round trip and a flush sooner.
       -- False, nobody waits: that may be wrong by the time of the commit, so the bell must be rung after it. NULL, another
       -- one rings at this moment: see doorbell.py.
       CASE WHEN NOT $9::bool OR NOT in_time THEN false
            WHEN pg_try_advisory_lock($11::bigint) THEN NOT pg_advisory_unlock($11::bigint)
            WHEN pg_try_advisory_xact_lock($12::bigint) THEN (SELECT true FROM pg_notify($10::text, '')) END AS rang
FROM clock
