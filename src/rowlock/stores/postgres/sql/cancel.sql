WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, clock_timestamp() AS now
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
changed AS (
    UPDATE {schema}._jobs j SET
        status = CASE held.status WHEN 'processing' THEN 'cancel_requested' ELSE 'cancelled' END,
        ready = false,
        finished_at = CASE WHEN held.status <> 'processing' THEN held.now END,
        cancel_requested_at = held.now, cancel_reason = $3::text, updated = held.now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(held.now),
            'event', CASE held.status WHEN 'processing' THEN 'cancel_requested' ELSE 'cancelled' END,
            'status', CASE held.status WHEN 'processing' THEN 'cancel_requested' ELSE 'cancelled' END,
            'version', j.version, 'by', $2::text, 'reason', $3::text)))
    FROM held
    WHERE j.ctid = ANY (ARRAY(
            SELECT tid FROM held WHERE status IN ('pending', 'blocked', 'waiting', 'processing')))
      AND j.id = held.id
    RETURNING j.id, j.topic, j.status, j.updated
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, cancelled)
    SELECT clock_timestamp(), topic, count(*) FROM changed WHERE status = 'cancelled' GROUP BY topic
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, job_id, topic, reason)
    SELECT updated, $2::text, 'cancel', id, topic, $3::text FROM changed ORDER BY id
)
SELECT held.id, coalesce(changed.status, held.status) AS status, changed.id IS NOT NULL AS done, NULL::uuid AS holder
FROM held LEFT JOIN changed ON changed.id = held.id
