WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, j.priority, j.run_at, j.payload, j.tags, clock_timestamp() AS now
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
wanted AS MATERIALIZED (
    SELECT id, tid, now, priority AS old_priority, run_at AS old_run_at, payload AS old_payload, tags AS old_tags,
           coalesce($5::timestamptz, now + $6::float8 * interval '1 second') AS new_run_at
    FROM held WHERE status = 'pending'
),
changed AS (
    UPDATE {schema}._jobs j SET
        priority = coalesce($4::int, j.priority), run_at = coalesce(w.new_run_at, j.run_at),
        ready = coalesce(w.new_run_at <= w.now, j.ready),
        payload = coalesce($7::text::json, j.payload), tags = CASE WHEN $8::bool THEN $9::text::jsonb ELSE j.tags END,
        updated = w.now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(w.now), 'event', 'updated', 'status', 'pending', 'version', j.version,
            'by', $2::text, 'reason', $3::text, 'changed', to_jsonb($10::text[]))))
    FROM wanted w
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM wanted)) AND j.id = w.id
    RETURNING j.id, j.topic, j.updated, j.priority, j.run_at, j.payload, j.tags,
              w.old_priority, w.old_run_at, w.old_payload, w.old_tags
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, job_id, topic, reason, data)
    SELECT updated, $2::text, 'update', id, topic, $3::text, json_build_object(
        'before', (SELECT json_object_agg(name, before ORDER BY name) FROM (VALUES
            ('payload', old_payload), ('priority', to_json(old_priority)),
            ('run_at', to_json({schema}._jobs_us(old_run_at))), ('tags', coalesce(old_tags, '[]')::json)
        ) AS v (name, before) WHERE name = ANY ($10::text[])),
        'after', (SELECT json_object_agg(name, after ORDER BY name) FROM (VALUES
            ('payload', payload), ('priority', to_json(priority)),
            ('run_at', to_json({schema}._jobs_us(run_at))), ('tags', coalesce(tags, '[]')::json)
        ) AS v (name, after) WHERE name = ANY ($10::text[])))
    FROM changed ORDER BY id
)
SELECT held.id, held.status, changed.id IS NOT NULL AS done, NULL::uuid AS holder
FROM held LEFT JOIN changed ON changed.id = held.id
