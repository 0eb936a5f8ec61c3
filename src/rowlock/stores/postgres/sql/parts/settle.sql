-- Sorted by id before rows are locked, so that two batches can't deadlock. `charged` is the new number of retries.
s AS MATERIALIZED (
    SELECT * FROM unnest(
        {ids}::uuid[], {runs}::int[], {goals}::text[], {delays}::float8[], {retries}::int[], {errors}::text[],
        {outcomes}::text[], {ran}::float8[], {reasons}::text[], {entries}::text[], {fingerprints}::text[],
        {waits}::text[], {seen}::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
-- By primary key, one by one. Status, version and worker are checked outside: here they would let the planner choose a
-- partial index.
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Read when the first row has been checked, after all locks.
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
-- `becomes`: a job that has got more signals than its run has seen does not wait.
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND {whose}
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM {schema}._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
{archived},
moved AS (
    UPDATE {schema}._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', {never}) ELSE j.run_at END,
        waits_for = CASE ok.becomes WHEN 'waiting' THEN ok.waits_for END,
        retries = coalesce(ok.charged, j.retries),
        last_error = coalesce(ok.error, j.last_error),
        fingerprint = ok.fingerprint,
        cancel_reason = CASE WHEN ok.goal = 'cancelled' THEN coalesce(j.cancel_reason, ok.reason)
                             ELSE j.cancel_reason END,
        started_at = CASE WHEN ok.ran IS NULL THEN j.started_at
                          ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END,
        finished_at = CASE WHEN ok.goal IN ('failed', 'cancelled') THEN ok.now END,
        -- It bounds the first start.
        expires_at = CASE WHEN ok.goal NOT IN ('failed', 'cancelled') AND (ok.ran IS NOT NULL OR j.started_at IS NOT NULL)
                          THEN NULL ELSE j.expires_at END,
        locked_by = NULL, locked_until = NULL, updated = ok.now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', {schema}._jobs_us(j.claimed_at),
            'started_at', {schema}._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO {schema}._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO {schema}._jobs_counts (
        at, topic, completed, executions, execution_us, failed, cancelled, retried, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*) FILTER (WHERE status IS NULL),
           count(took) FILTER (WHERE status IS NULL),
           coalesce(extract(epoch FROM sum(took) FILTER (WHERE status IS NULL)) * 1000000, 0),
           count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'cancelled'),
           count(*) FILTER (WHERE status = 'pending'),
           -- The duration of a cancelled run says nothing about the topic.
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled'),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled')
    FROM (SELECT topic, NULL AS status, waited, took FROM archived UNION ALL
          SELECT topic, status, waited, took FROM moved WHERE status IN ('failed', 'cancelled') OR retried) ended
    GROUP BY topic
),
settle_summary AS (
    -- NULL if all were applied, else their ids. Counted by the writes, not by `ok`: a row that another transaction
    -- changed while we waited for its lock is too new for our snapshot, and the write misses it.
    SELECT CASE WHEN count(*) < cardinality({ids}::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
)
