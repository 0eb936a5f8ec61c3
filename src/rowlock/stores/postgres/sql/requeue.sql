WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, j.version, j.topic, j.key, j.scope, j.scope_id, j.priority, j.run_at, j.tags,
               CASE WHEN $9::text IS NOT NULL THEN j.payload END AS payload, clock_timestamp() AS now
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Taking a key may mean waiting for someone else's transaction, so it is done for one job at a time ($4): who holds no
-- other key while it waits can't be part of a circle. In a batch, a job with a key is answered with its own id.
wanted AS MATERIALIZED (
    SELECT held.*, coalesce($7::timestamptz, now + $8::float8 * interval '1 second',
                             CASE WHEN $13::bool THEN run_at END, now) AS new_run_at,
        CASE WHEN held.key IS NULL THEN NULL WHEN NOT $4::bool THEN held.id ELSE
        (SELECT k.id FROM {schema}._jobs k
         WHERE k.topic = held.topic AND k.key = held.key AND k.key IS NOT NULL
           AND {schema}._jobs_short(k.scope) = {schema}._jobs_short(held.scope)
           AND {schema}._jobs_short(k.scope_id) = {schema}._jobs_short(held.scope_id)
           AND k.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')) END AS holder
    FROM held WHERE held.status IN ('failed', 'expired', 'cancelled') AND held.version = coalesce($5::int, held.version)
),
changed AS (
    UPDATE {schema}._jobs j SET
        status = 'pending', ready = w.new_run_at <= w.now, run_at = w.new_run_at, progress = 0,
        -- $13: a cancel is undone. Then these are as they were.
        retries = CASE WHEN $13::bool THEN j.retries ELSE 0 END, crashes = CASE WHEN $13::bool THEN j.crashes ELSE 0 END,
        expires_at = CASE WHEN $13::bool THEN j.expires_at END,
        stage = NULL, message = NULL, result = NULL, finished_at = NULL, cancel_requested_at = NULL,
        cancel_reason = NULL, fingerprint = NULL, updated = w.now, priority = coalesce($6::int, j.priority),
        payload = coalesce($9::text::json, j.payload), tags = CASE WHEN $10::bool THEN $11::text::jsonb ELSE j.tags END,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(w.now), 'event', 'requeued', 'status', 'pending', 'version', j.version,
            'by', $2::text, 'reason', $3::text, 'changed', to_jsonb(nullif($12::text[], '{}')))))
    FROM wanted w
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM wanted WHERE holder IS NULL)) AND j.id = w.id
    RETURNING j.id, j.topic, j.updated, w.status AS was, j.priority, j.run_at, j.payload, j.tags,
              w.priority AS old_priority, w.run_at AS old_run_at, w.payload AS old_payload, w.tags AS old_tags
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, failed, expired, cancelled)
    SELECT clock_timestamp(), topic, -count(*) FILTER (WHERE was = 'failed'), -count(*) FILTER (WHERE was = 'expired'),
           -count(*) FILTER (WHERE was = 'cancelled')
    FROM changed GROUP BY topic
),
-- This sees the jobs as they were before. In order, and only what is new: others may requeue jobs of the same groups.
seen AS (
    INSERT INTO {schema}._jobs_first_failures AS f (fingerprint, at)
    SELECT k.fingerprint, min(k.finished_at) FROM {schema}._jobs k
    WHERE k.id = ANY (ARRAY(SELECT id FROM changed)) AND k.fingerprint IS NOT NULL AND k.finished_at IS NOT NULL
    GROUP BY k.fingerprint
    HAVING NOT EXISTS (SELECT FROM {schema}._jobs_first_failures o
                       WHERE o.fingerprint = k.fingerprint AND o.at <= min(k.finished_at))
    ORDER BY k.fingerprint
    ON CONFLICT (fingerprint) DO UPDATE SET at = least(f.at, excluded.at)
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, job_id, topic, reason, data)
    SELECT updated, $2::text, 'requeue', id, topic, $3::text, CASE WHEN $12::text[] <> '{}' THEN json_build_object(
        'before', (SELECT json_object_agg(name, before ORDER BY name) FROM (VALUES
            ('payload', old_payload), ('priority', to_json(old_priority)),
            ('run_at', to_json({schema}._jobs_us(old_run_at))), ('tags', coalesce(old_tags, '[]')::json)
        ) AS v (name, before) WHERE name = ANY ($12::text[])),
        'after', (SELECT json_object_agg(name, after ORDER BY name) FROM (VALUES
            ('payload', payload), ('priority', to_json(priority)),
            ('run_at', to_json({schema}._jobs_us(run_at))), ('tags', coalesce(tags, '[]')::json)
        ) AS v (name, after) WHERE name = ANY ($12::text[]))) END
    FROM changed ORDER BY id
)
SELECT held.id, CASE WHEN changed.id IS NULL THEN held.status ELSE 'pending' END AS status,
       changed.id IS NOT NULL AS done, wanted.holder
FROM held LEFT JOIN changed ON changed.id = held.id LEFT JOIN wanted ON wanted.id = held.id
