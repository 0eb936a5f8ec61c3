-- Insert jobs that differ in id, topic and payload only; their other columns are sent once. Their ids are new, so there is
-- no ON CONFLICT, which would add a quarter to a row's cost: see insert_new in insert.py. The client has counted the jobs
-- of each topic ($13, $14), because counting here would add a tenth to a single job's cost. After $15 the client may have
-- asked again, so nothing is inserted: see clock.py.
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
SELECT now,
       -- Once the rows are there, a repeat waits for this transaction. If they came after $15, the repeat may have been
       -- first: an error takes them back.
       (SELECT CASE WHEN count(*) > 0 AND clock_timestamp() > $15::timestamptz
                    THEN ('too late by ' || (clock_timestamp() - $15::timestamptz))::bigint
                    ELSE count(*) END FROM ins) AS inserted,
       -- ring.sql in the same commit, if $9: a waiting worker gets the job a round trip and a flush sooner. False: no worker
       -- waits. One may wait by the time of the commit, so the store must ring after it. NULL: another transaction is
       -- ringing (see doorbell.py).
       CASE WHEN NOT $9::bool OR NOT in_time THEN false
            WHEN pg_try_advisory_lock($11::bigint) THEN NOT pg_advisory_unlock($11::bigint)
            WHEN pg_try_advisory_xact_lock($12::bigint) THEN (SELECT true FROM pg_notify($10::text, '')) END AS rang
FROM clock
