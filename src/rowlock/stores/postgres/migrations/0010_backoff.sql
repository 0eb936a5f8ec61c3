-- Seconds that a job of this topic waits after its first, second, … charged crash; the last one repeats. Written by workers that
-- know the topic, read by whoever rescues. NULL: the default's.
ALTER TABLE {schema}._jobs_topics ADD COLUMN backoff double precision[];

-- As before, with the topic's own backoff, and an error that says what is not known.
CREATE OR REPLACE FUNCTION {schema}.rescue_jobs(
    by text DEFAULT 'rescue_jobs', grace interval DEFAULT '30 seconds', n integer DEFAULT 500)
RETURNS integer LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    back integer;
BEGIN
    PERFORM {schema}._jobs_check_text(by, 'by', 512, true);
    PERFORM {schema}._jobs_check_span(grace, 'grace', 0, 86400);
    PERFORM {schema}._jobs_check_number(n, 'n', 1, 10000);
    IF pg_postmaster_start_time() BETWEEN clock_timestamp() - grace AND clock_timestamp() THEN
        RETURN 0;
    END IF;
    WITH picked AS MATERIALIZED (
        SELECT j.id, j.ctid AS tid, j.status AS was, j.started_at IS NOT NULL AS started, j.locked_by AS worker,
               j.retries < j.max_retries AS may_retry, j.topic, j.retries, j.crashes, clock_timestamp() AS now
        FROM {schema}._jobs j
        WHERE j.locked_until < (SELECT clock_timestamp())
        ORDER BY j.locked_until
        LIMIT n
        FOR UPDATE SKIP LOCKED
    ),
    decided AS MATERIALIZED (
        SELECT picked.*,
               CASE WHEN crashes = 0 THEN NULL  -- the first: at once
                    WHEN t.backoff IS NULL THEN 60.0 * least(retries + 1, 32) ^ 2
                    ELSE t.backoff[least(retries + 1, cardinality(t.backoff))] END AS backoff,
               CASE WHEN was = 'cancel_requested' THEN 'cancelled' WHEN started AND NOT may_retry THEN 'expired'
                    ELSE 'pending' END AS goal,
               was = 'processing' AND started AND may_retry AS charged,
               CASE WHEN was = 'processing' AND started
                    THEN 'Task timed out (worker crashed?): worker ' || worker
                         || '. Its start was recorded; the handler may not have begun.' END AS error
        FROM picked LEFT JOIN {schema}._jobs_topics t ON t.topic = picked.topic
    ),
    rescued AS (
        UPDATE {schema}._jobs j SET
            status = d.goal,
            ready = d.goal = 'pending' AND NOT (d.charged AND coalesce(d.backoff, 0) > 0),
            run_at = CASE WHEN d.charged AND d.backoff IS NOT NULL THEN d.now + d.backoff * interval '1 second'
                          ELSE j.run_at END,
            retries = j.retries + d.charged::int,
            crashes = j.crashes + 1,
            last_error = coalesce(d.error, j.last_error),
            finished_at = CASE WHEN d.goal <> 'pending' THEN d.now END,
            locked_by = NULL, locked_until = NULL, updated = d.now,
            history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
            history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
                'at', {schema}._jobs_us(d.now), 'event', 'rescued', 'status', d.goal, 'version', j.version,
                'by', rescue_jobs.by, 'worker', d.worker, 'claimed_at', {schema}._jobs_us(j.claimed_at),
                'started_at', {schema}._jobs_us(j.started_at),
                'delay', CASE WHEN d.charged AND d.backoff > 0 THEN d.backoff END, 'error', d.error)))
        FROM decided d
        WHERE j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND j.id = d.id
        RETURNING j.topic, j.status, d.charged
    ),
    counted AS (
        INSERT INTO {schema}._jobs_counts (at, topic, expired, cancelled, retried, lost)
        SELECT clock_timestamp(), topic, count(*) FILTER (WHERE status = 'expired'),
               count(*) FILTER (WHERE status = 'cancelled'), count(*) FILTER (WHERE charged), count(*)
        FROM rescued GROUP BY topic
    )
    SELECT count(*) INTO back FROM rescued;
    IF back > 0 THEN
        PERFORM {schema}._jobs_ring();
    END IF;
    RETURN back;
END $$;
