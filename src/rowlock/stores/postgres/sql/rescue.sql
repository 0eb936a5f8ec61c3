-- ONE statement: a rescue that first looks and then writes by id breaks even a fenced settle.
-- What a crash costs is decided by core: $2 is its backoff table, unless the topic has one of its own, $3 its error text; $5 says
-- how the worker died.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.ctid AS tid, j.status AS was, j.started_at IS NOT NULL AS started, j.locked_by AS worker,
           j.retries < j.max_retries AS may_retry, j.topic, j.retries, j.crashes, clock_timestamp() AS now
    FROM {schema}._jobs j
    WHERE {whose}
    ORDER BY j.locked_until
    LIMIT $4::int
    FOR UPDATE SKIP LOCKED
),
decided AS MATERIALIZED (
    SELECT picked.*,
           CASE WHEN crashes > 0  -- NULL on the first crash: at once, and in its old place
                THEN tables.backoff[least(retries + 1, cardinality(tables.backoff))] END AS backoff,
           CASE WHEN was = 'cancel_requested' THEN 'cancelled' WHEN started AND NOT may_retry THEN 'expired'
                ELSE 'pending' END AS goal,
           was = 'processing' AND started AND may_retry AS charged,
           CASE WHEN was = 'processing' AND started THEN $3::text || ': worker ' || worker || $5::text END AS error
    FROM picked
    CROSS JOIN LATERAL (SELECT coalesce(
        (SELECT t.backoff FROM {schema}._jobs_topics t WHERE t.topic = picked.topic), $2::float8[]) AS backoff) tables
),
rescued AS (
    UPDATE {schema}._jobs j SET
        status = d.goal,
        ready = d.goal = 'pending' AND NOT (d.charged AND coalesce(d.backoff, 0) > 0),
        run_at = CASE WHEN d.charged AND d.backoff IS NOT NULL THEN d.now + d.backoff * interval '1 second'
                      ELSE j.run_at END,
        retries = j.retries + d.charged::int,
        crashes = j.crashes + {crashes},
        last_error = coalesce(d.error, j.last_error), fingerprint = NULL,  -- see group_failures
        finished_at = CASE WHEN d.goal <> 'pending' THEN d.now END,
        locked_by = NULL, locked_until = NULL, updated = d.now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(d.now), 'event', 'rescued', 'status', d.goal, 'version', j.version, 'by', $1::text,
            'worker', d.worker, 'claimed_at', {schema}._jobs_us(j.claimed_at),
            'started_at', {schema}._jobs_us(j.started_at),
            'delay', CASE WHEN d.charged AND d.backoff > 0 THEN d.backoff END, 'error', d.error)))
    FROM decided d
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND j.id = d.id
    RETURNING j.id, j.topic, j.version, j.status, d.charged
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, expired, cancelled, retried, lost)
    SELECT clock_timestamp(), topic, count(*) FILTER (WHERE status = 'expired'), count(*) FILTER (WHERE status = 'cancelled'),
           count(*) FILTER (WHERE charged), count(*)
    FROM rescued GROUP BY topic
)
SELECT id, topic, version, status, charged FROM rescued
