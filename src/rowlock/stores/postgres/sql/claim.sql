-- Index entries read so far by this session, less the rows found by them: the difference is what a claim reads of dead
-- entries (see hints.py).
meter AS MATERIALIZED (SELECT {dead_claim} AS claim, {dead_due} AS due),
-- Lanes that may be claimed now. They come as two texts, because 500 of them as arrays take a millisecond to send.
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(string_to_array($1::text, ' '), string_to_array($2::text, ' ')::int[])
        WITH ORDINALITY AS l (topic, template_version, n)
    WHERE {after_settle} l.topic <> ALL (ARRAY(
        SELECT topic FROM {schema}._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))))
      AND (SELECT clock_timestamp()) <= coalesce($13::timestamptz, 'infinity')  -- its client still waits: see clock.py
),
-- The parts of every lane that are read: all of it, or what lies between the ranges that hints.py leaves out.
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest($3::int[], $4::timestamptz[], $5::uuid[], $6::int[], $7::timestamptz[]) WITH ORDINALITY
        AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
-- The first of all lanes together, read without locks.
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $9::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $9::int
),
-- How many from each lane: strict priority across lanes. A single lane may have them all: then nobody looks at `top`.
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality($3::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, $9::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
-- MATERIALIZED: inlined into the UPDATE, SKIP LOCKED may take more than its LIMIT. The size is that in the table, often
-- compressed: to know it costs nothing.
locked AS MATERIALIZED (
    SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
        FROM {schema}._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
-- The first of them that are not too large together, and in any case one.
small AS MATERIALIZED (SELECT coalesce(sum(size), 0) <= coalesce($14::bigint, 9223372036854775807) AS yes FROM locked),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < $14::bigint
),
-- Read when the first row is written: after all that had to be waited for.
claim_clock AS MATERIALIZED (
    SELECT now, now + $11::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
claimed AS (
    UPDATE {schema}._jobs j SET
        status = 'processing', ready = false, version = version + 1, locked_by = $10::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $12::bool THEN (SELECT now FROM claim_clock) END,
        progress = 0, stage = NULL, message = NULL, updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING {columns}
),
claim_summary AS (
    -- In one array, because every column of this row is one of each claimed job, too. OFFSET 0: the meter is read last.
    SELECT ARRAY[contended::int, {dead_claim} - meter.claim, {dead_due} - meter.due] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < $9::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM {schema}._jobs
                WHERE status = 'pending' AND NOT ready AND run_at < 'infinity'
                  AND run_at > coalesce($8::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
