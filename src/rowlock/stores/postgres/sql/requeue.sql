WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, j.topic, j.key, clock_timestamp() AS now
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Taking a key may mean waiting for someone else's transaction, so it is done for one job at a time ($4): who holds no
-- other key while it waits can't be part of a circle. In a batch, a job with a key is answered with its own id.
wanted AS MATERIALIZED (
    SELECT held.*, CASE WHEN held.key IS NULL THEN NULL WHEN NOT $4::bool THEN held.id ELSE
        (SELECT k.id FROM {schema}._jobs k
         WHERE k.topic = held.topic AND k.key = held.key AND k.key IS NOT NULL
           AND k.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')) END AS holder
    FROM held WHERE held.status IN ('failed', 'expired', 'cancelled')
),
changed AS (
    UPDATE {schema}._jobs j SET
        status = 'pending', ready = true, run_at = w.now, retries = 0, crashes = 0, progress = 0, stage = NULL,
        message = NULL, result = NULL, expires_at = NULL, finished_at = NULL, cancel_requested_at = NULL,
        cancel_reason = NULL, fingerprint = NULL, updated = w.now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(w.now), 'event', 'requeued', 'status', 'pending', 'version', j.version,
            'by', $2::text, 'reason', $3::text)))
    FROM wanted w
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM wanted WHERE holder IS NULL)) AND j.id = w.id
    RETURNING j.id, j.topic, j.updated, w.status AS was
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, failed, expired, cancelled)
    SELECT clock_timestamp(), topic, -count(*) FILTER (WHERE was = 'failed'), -count(*) FILTER (WHERE was = 'expired'),
           -count(*) FILTER (WHERE was = 'cancelled')
    FROM changed GROUP BY topic
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, job_id, topic, reason)
    SELECT updated, $2::text, 'requeue', id, topic, $3::text FROM changed ORDER BY id
)
SELECT held.id, CASE WHEN changed.id IS NULL THEN held.status ELSE 'pending' END AS status,
       changed.id IS NOT NULL AS done, wanted.holder
FROM held LEFT JOIN changed ON changed.id = held.id LEFT JOIN wanted ON wanted.id = held.id
