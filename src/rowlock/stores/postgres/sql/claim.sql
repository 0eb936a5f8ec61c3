-- Lanes that may be claimed now; `after_*` is a lower bound of the lane's scan (see docs/decisions).
lane AS MATERIALIZED (
    SELECT l.topic, l.template_version, coalesce(l.after_rank, -2147483648) AS after_rank,
           coalesce(l.after_run_at, '-infinity') AS after_run_at,
           coalesce(l.after_id, '00000000-0000-0000-0000-000000000000') AS after_id
    FROM unnest($1::text[], $2::int[], $3::int[], $4::timestamptz[], $5::uuid[])
        AS l (topic, template_version, after_rank, after_run_at, after_id)
    LEFT JOIN {schema}._jobs_topics t ON t.topic = l.topic
    WHERE {after_settle} (t.paused_at IS NULL OR t.paused_until <= (SELECT clock_timestamp()))
),
-- How much of the merged top n each lane owns, read without locks: strict priority across lanes.
take AS MATERIALIZED (
    SELECT topic, template_version, after_rank, after_run_at, after_id, count(*)::int AS n
    FROM (
        SELECT l.* FROM lane l CROSS JOIN LATERAL (
            SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
            WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
              AND (-j.priority, j.run_at, j.id) > (l.after_rank, l.after_run_at, l.after_id)
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY -j.priority, j.run_at, j.id
            LIMIT $6::int
        ) h
        ORDER BY h.rank, h.run_at, h.id
        LIMIT $6::int
    ) merged
    GROUP BY 1, 2, 3, 4, 5
),
-- MATERIALIZED: inlined into the UPDATE, SKIP LOCKED may take more than its LIMIT.
picked AS MATERIALIZED (
    SELECT h.tid FROM take t CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.ready AND j.topic = t.topic AND j.template_version = t.template_version
          AND (-j.priority, j.run_at, j.id) > (t.after_rank, t.after_run_at, t.after_id)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.n
        FOR UPDATE SKIP LOCKED
    ) h
),
claimed AS (
    UPDATE {schema}._jobs j SET
        status = 'processing', ready = false, version = version + 1, locked_by = $7::text,
        locked_until = clock_timestamp() + $8::float8 * interval '1 second', claimed_at = clock_timestamp(),
        started_at = CASE WHEN $9::bool THEN clock_timestamp() END,
        progress = 0, stage = NULL, message = NULL, updated = clock_timestamp()
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING {columns}
),
claim_summary AS (
    SELECT (SELECT coalesce(sum(n), 0) FROM take) > (SELECT count(*) FROM claimed) AS contended,
           (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM {schema}._jobs
            WHERE status = 'pending' AND NOT ready AND run_at < 'infinity' ORDER BY run_at LIMIT 1) AS next_due
)
