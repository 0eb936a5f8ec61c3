-- Lanes that may be claimed now; `after_*` is a lower bound of the lane's scan (see docs/decisions).
lane AS MATERIALIZED (
    SELECT l.topic, l.template_version, coalesce(l.after_rank, -2147483648) AS after_rank,
           coalesce(l.after_run_at, '-infinity') AS after_run_at,
           coalesce(l.after_id, '00000000-0000-0000-0000-000000000000') AS after_id, l.n
    FROM unnest($1::text[], $2::int[], $3::int[], $4::timestamptz[], $5::uuid[]) WITH ORDINALITY
        AS l (topic, template_version, after_rank, after_run_at, after_id, n)
    LEFT JOIN {schema}._jobs_topics t ON t.topic = l.topic
    WHERE {after_settle} (t.paused_at IS NULL OR t.paused_until <= (SELECT clock_timestamp()))
      AND (SELECT clock_timestamp()) <= coalesce($10::timestamptz, 'infinity')  -- its client still waits: see clock.py
),
-- The first of all lanes together, read without locks.
top AS MATERIALIZED (
    SELECT l.n AS lane FROM lane l CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (l.after_rank, l.after_run_at, l.after_id)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $6::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $6::int
),
-- How many from each lane: strict priority across lanes. A single lane may have them all: then nobody looks at `top`.
take AS MATERIALIZED (
    SELECT l.*, $6::int AS most FROM lane l WHERE (SELECT count(*) FROM lane) = 1
    UNION ALL
    SELECT l.*, share.most FROM (SELECT lane, count(*)::int AS most FROM top GROUP BY lane) share
    JOIN lane l ON l.n = share.lane WHERE (SELECT count(*) FROM lane) > 1
),
-- MATERIALIZED: inlined into the UPDATE, SKIP LOCKED may take more than its LIMIT.
picked AS MATERIALIZED (
    SELECT h.tid FROM take t CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.ready AND j.topic = t.topic AND j.template_version = t.template_version
          AND (-j.priority, j.run_at, j.id) > (t.after_rank, t.after_run_at, t.after_id)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
-- Read when the first row is written: after all that had to be waited for.
claim_clock AS MATERIALIZED (
    SELECT now, now + $8::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
claimed AS (
    UPDATE {schema}._jobs j SET
        status = 'processing', ready = false, version = version + 1, locked_by = $7::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $9::bool THEN (SELECT now FROM claim_clock) END,
        progress = 0, stage = NULL, message = NULL, updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING {columns}
),
claim_summary AS (
    SELECT CASE WHEN (SELECT count(*) FROM claimed) < $6::int
                THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
           (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM {schema}._jobs
            WHERE status = 'pending' AND NOT ready AND run_at < 'infinity' ORDER BY run_at LIMIT 1) AS next_due,
           now, until
    FROM claim_clock
)
