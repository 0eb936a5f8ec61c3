-- How many dead index entries this session has read so far. claim_bounds.py uses what the claim adds to it.
meter AS MATERIALIZED (SELECT {dead_claim} AS claim, {dead_due} AS due),
-- Lanes that may be claimed now. They come as two texts, because 500 of them take a millisecond to send as arrays.
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(
        string_to_array({topics}::text, ' '), string_to_array({template_versions}::text, ' ')::int[]
    ) WITH ORDINALITY AS l (topic, template_version, n)
    WHERE {after_settle} l.topic <> ALL (ARRAY(
        SELECT topic FROM {schema}._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
        UNION ALL SELECT topic FROM {schema}._jobs_topics WHERE limited))
      -- After this time the worker no longer waits for the answer: see clock.py.
      AND (SELECT clock_timestamp()) <= coalesce({not_after}::timestamptz, 'infinity')
),
-- The parts of every lane that are read: the whole lane, or what claim_bounds.py has not ruled out.
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest(
        {after_ranks}::int[], {after_run_ats}::timestamptz[], {after_ids}::uuid[],
        {until_ranks}::int[], {until_run_ats}::timestamptz[]
    ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
-- The first jobs of all lanes together, read without locks.
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT {most}::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT {most}::int
),
-- How many jobs to take from each lane: strict priority across lanes. For a single lane `top` is not read.
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality({after_ranks}::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, {most}::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
-- MATERIALIZED, because a SKIP LOCKED that the planner inlines into the UPDATE may take more than its LIMIT. The size is
-- the stored one, often compressed: reading it costs nothing.
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
-- The first of these jobs that are not too large together, but at least one.
small AS MATERIALIZED (
    SELECT coalesce(sum(size), 0) <= coalesce({size}::bigint, 9223372036854775807) AS yes FROM locked
),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < {size}::bigint
),
-- Read when the first row is written, after all waiting.
claim_clock AS MATERIALIZED (
    SELECT now, now + {lease}::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
-- A waiting job that is cancelled runs once more, to undo what it has done: it stays cancel_requested.
claimed AS (
    UPDATE {schema}._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = {worker}::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN {start}::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING {columns}
),
claim_summary AS (
    -- `seen` is one array, because each column of this row also costs a column of every claimed job. OFFSET 0 lets the
    -- meter be read last.
    SELECT ARRAY[(contended{or_woken})::int, {dead_claim} - meter.claim, {dead_due} - meter.due,
                 (EXISTS (SELECT FROM {schema}._jobs_ends){or_ended})::int,
                 (EXISTS (SELECT FROM {schema}._jobs_topics
                          WHERE limited AND topic = ANY (string_to_array({topics}::text, ' '))))::int] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < {most}::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM {schema}._jobs
                WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < {never}
                  AND run_at > coalesce({due_after}::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
