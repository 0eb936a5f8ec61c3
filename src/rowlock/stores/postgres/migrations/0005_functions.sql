-- For clients without rowlock's library: any language that speaks SQL enqueues and works by these functions (docs/sql.md).
-- They keep to the rules of the store's own statements, and run with the rights of whoever calls them.
--
-- Those on the hot path plan as the store's sessions do: once, and never a scan of a table that was empty at that time.

-- ── What may come in ──

-- ERRCODE invalid_parameter_value; the field is the error's column, the code that programs may rely on is its detail.
CREATE FUNCTION {schema}._jobs_refuse(field text, code text, problem text, hint text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code, HINT = hint;
END $$;

CREATE FUNCTION {schema}._jobs_check_text(value text, field text, most integer, needed boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL AND needed THEN
        PERFORM {schema}._jobs_refuse(field, 'missing', 'must be given');
    ELSIF char_length(value) NOT BETWEEN 1 AND most THEN
        PERFORM {schema}._jobs_refuse(
            field, 'bad_length', format('must be 1 to %s characters, not %s', most, char_length(value)));
    END IF;
END $$;

CREATE FUNCTION {schema}._jobs_check_topic(topic text, field text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF topic IS NULL THEN
        PERFORM {schema}._jobs_refuse(field, 'missing', 'must be given');
    ELSIF topic = '' THEN
        PERFORM {schema}._jobs_refuse(field, 'empty', 'must not be empty');
    ELSIF char_length(topic) > 128 THEN
        PERFORM {schema}._jobs_refuse(
            field, 'too_long', format('is %s characters, at most 128 are allowed', char_length(topic)));
    ELSIF topic !~ '^[A-Za-z0-9_.:/-]+$' THEN
        PERFORM {schema}._jobs_refuse(
            field, 'bad_characters', format('%L may only hold A-Z a-z 0-9 _ . : / and -', topic));
    END IF;
END $$;

CREATE FUNCTION {schema}._jobs_check_number(value bigint, field text, low bigint, high bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL OR value NOT BETWEEN low AND high THEN
        PERFORM {schema}._jobs_refuse(
            field, 'out_of_range', format('must be %s to %s, not %s', low, high, coalesce(value::text, 'NULL')));
    END IF;
END $$;

-- In seconds.
CREATE FUNCTION {schema}._jobs_check_span(value interval, field text, low double precision, high double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    seconds double precision := extract(epoch FROM value);
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN low AND high THEN
        PERFORM {schema}._jobs_refuse(
            field, 'out_of_range',
            format('must be %s to %s seconds, not %s', low, high, coalesce(seconds::text, 'NULL')));
    END IF;
    RETURN seconds;
END $$;

CREATE FUNCTION {schema}._jobs_check_time(value timestamptz, field text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT isfinite(value) OR extract(year FROM value AT TIME ZONE 'UTC') NOT BETWEEN 1900 AND 9000 THEN
        PERFORM {schema}._jobs_refuse(
            field, 'time_range', format('%s is not between the years 1900 and 9000', value));
    END IF;
END $$;

-- Every write of a worker names all three.
CREATE FUNCTION {schema}._jobs_check_run(id uuid, version integer, worker text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF id IS NULL OR version IS NULL OR worker IS NULL THEN
        PERFORM {schema}._jobs_refuse(
            CASE WHEN id IS NULL THEN 'id' WHEN version IS NULL THEN 'version' ELSE 'worker' END, 'missing',
            'must be given');
    END IF;
END $$;

-- What every store can keep, as rowlock's encoder has it. Its text is kept as it comes.
CREATE FUNCTION {schema}._jobs_check_json(value json, field text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    said text := value::text;
    wrong record;
BEGIN
    IF octet_length(said) > 1048576 THEN
        PERFORM {schema}._jobs_refuse(
            field, 'too_large',
            format('is %s bytes as JSON, at most 1,048,576 are allowed', to_char(octet_length(said), 'FM999,999,999,999')),
            'Queue references, not blobs: store the data elsewhere and pass its id.');
    END IF;
    -- A quick look: no escapes, no number that could be too large, not enough brackets to be too deep.
    IF strpos(said, E'\\u') = 0 AND said !~ '[0-9]{19}|[0-9][eE][+]?[0-9]{3}'
       AND length(said) - length(translate(said, '{[', '')) <= 64 THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM said::jsonb;
    EXCEPTION
        WHEN untranslatable_character THEN
            PERFORM {schema}._jobs_refuse(field, 'nul', E'holds a NUL character (\\u0000)');
        WHEN invalid_text_representation THEN
            PERFORM {schema}._jobs_refuse(
                field, 'lone_surrogate', 'holds a lone surrogate, which is not valid Unicode');
        WHEN numeric_value_out_of_range THEN
            PERFORM {schema}._jobs_refuse(field, 'not_finite', 'holds a number that is too large');
    END;
    WITH RECURSIVE walk (value, path, depth) AS (
        SELECT _jobs_check_json.value, field, 1
        UNION ALL
        SELECT inner_.value, w.path || inner_.step, w.depth + 1
        FROM walk w CROSS JOIN LATERAL (
            SELECT '.' || e.key AS step, e.value
            FROM json_each(CASE json_typeof(w.value) WHEN 'object' THEN w.value END) e
            UNION ALL
            SELECT '[' || (e.n - 1) || ']', e.value
            FROM json_array_elements(CASE json_typeof(w.value) WHEN 'array' THEN w.value END)
                WITH ORDINALITY AS e (value, n)
        ) inner_
        WHERE w.depth <= 64
    ),
    judged AS (
        SELECT w.path,
               CASE WHEN json_typeof(w.value) IN ('object', 'array') AND w.depth > 64 THEN 'too_deep'
                    WHEN json_typeof(w.value) <> 'number' THEN NULL
                    WHEN w.value::text !~ '^-?[0-9]+$' THEN
                        CASE WHEN abs(w.value::text::numeric) > 1.7976931348623157e308 THEN 'not_finite' END
                    WHEN w.value::text::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807
                        THEN 'integer_range' END AS code
        FROM walk w
    )
    SELECT * INTO wrong FROM judged j WHERE j.code IS NOT NULL LIMIT 1;
    IF FOUND THEN
        PERFORM {schema}._jobs_refuse(wrong.path, wrong.code, CASE wrong.code
            WHEN 'too_deep' THEN 'is nested deeper than 64 levels'
            WHEN 'integer_range' THEN 'is an integer beyond 64 bits; pass it as a string'
            ELSE 'is a number that is too large' END);
    END IF;
END $$;

-- The middle is cut out of what is too long: the beginning and the end of an error say the most.
CREATE FUNCTION {schema}._jobs_clean(said text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    data bytea := convert_to(said, 'UTF8');
    half integer := (most - 64) / 2;
    head integer := half;
    tail integer := length(data) - half;
BEGIN
    IF length(data) <= most THEN
        RETURN said;
    END IF;
    WHILE get_byte(data, head) & 192 = 128 LOOP  -- in the middle of a character
        head := head - 1;
    END LOOP;
    WHILE get_byte(data, tail) & 192 = 128 LOOP
        tail := tail + 1;
    END LOOP;
    RETURN convert_from(substr(data, 1, head), 'UTF8')
        || format(E'\n… %s bytes left out …\n', to_char(length(data) - 2 * half, 'FM999,999,999,999'))
        || convert_from(substr(data, tail + 1), 'UTF8');
END $$;

-- ── Parts ──

-- A UUIDv7: the milliseconds, then the rest of the time to a four-thousandth of one, then chance.
CREATE FUNCTION {schema}._jobs_new_id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
    FROM (SELECT {schema}._jobs_us(at) AS us) t
$$;

-- Rings for workers that wait, when the transaction commits. Who waits holds this lock, shared (see the doorbell): if nobody
-- does, nothing is sent, for a NOTIFY takes a lock of the whole server. Not for longer than this moment, because the
-- caller's transaction may be a long one.
CREATE FUNCTION {schema}._jobs_ring() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    channel text := 'rowlock_' || trim('"' FROM '{schema}');
    waiting bigint := ('x' || left(encode(sha256(convert_to('rowlock waits on ' || channel, 'UTF8')), 'hex'), 16))
        ::bit(64)::bigint;
BEGIN
    IF pg_try_advisory_lock(waiting) THEN
        PERFORM pg_advisory_unlock(waiting);
    ELSE
        PERFORM pg_notify(channel, '');
    END IF;
END $$;

-- What became of a run that could not be written: `already`, if it had ended so before (the answer to that got lost).
CREATE FUNCTION {schema}._jobs_verdict(id uuid, version integer, worker text, events text[])
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN CASE WHEN (
        SELECT CASE WHEN j.status = 'completed' AND j.version = _jobs_verdict.version
                         AND j.locked_by = _jobs_verdict.worker THEN 'completed'
               ELSE (SELECT e->>'event' FROM jsonb_array_elements(j.history) WITH ORDINALITY AS h (e, n)
                     WHERE (e->>'version')::int = _jobs_verdict.version AND e ? 'claimed_at'
                       -- Whoever takes a run away names its worker; who ends it by itself is the worker.
                       AND coalesce(e->>'worker', e->>'by') = _jobs_verdict.worker
                     ORDER BY n DESC LIMIT 1) END
        FROM {schema}._jobs_all j  -- a range: see _jobs_find
        WHERE j.id BETWEEN _jobs_verdict.id AND _jobs_verdict.id ORDER BY j.id LIMIT 1
    ) = ANY (events) THEN 'already' ELSE 'lost' END;
END $$;

-- Ends a run that does not complete. The caller has decided, by a row that it holds.
CREATE FUNCTION {schema}._jobs_end_run(
    id uuid, version integer, worker text, was text, due timestamptz, goal text, event text, delay double precision,
    charged boolean, error text, reason text)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz := clock_timestamp();
    of_topic text;
    began timestamptz;
BEGIN
    UPDATE {schema}._jobs j SET
        status = goal,
        ready = goal = 'pending' AND coalesce(delay, 0) = 0,
        run_at = CASE WHEN goal = 'pending' AND delay IS NOT NULL THEN now + delay * interval '1 second' ELSE j.run_at END,
        retries = j.retries + charged::int,
        last_error = coalesce(error, j.last_error),
        finished_at = CASE WHEN goal <> 'pending' THEN now END,
        locked_by = NULL, locked_until = NULL, updated = now,
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
            'at', {schema}._jobs_us(now), 'event', event, 'status', goal, 'version', j.version, 'by', j.locked_by,
            'claimed_at', {schema}._jobs_us(j.claimed_at), 'started_at', {schema}._jobs_us(j.started_at),
            'delay', nullif(delay, 0), 'error', {schema}._jobs_clean(error, 4096), 'reason', reason)))
    WHERE j.id = _jobs_end_run.id AND j.version = _jobs_end_run.version AND j.locked_by = _jobs_end_run.worker
      AND j.status = was
    RETURNING j.topic, CASE WHEN goal <> 'cancelled' THEN j.started_at END INTO of_topic, began;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF goal <> 'pending' OR charged THEN
        -- Of a run that was cancelled, how long it was left alone says nothing.
        INSERT INTO {schema}._jobs_counts (at, topic, failed, cancelled, retried, waits, runs)
        VALUES (now, of_topic, (goal = 'failed')::int, (goal = 'cancelled')::int, (goal = 'pending')::int,
                CASE WHEN began IS NOT NULL THEN ARRAY[date_part('epoch', began - due)::real] END,
                CASE WHEN began IS NOT NULL THEN ARRAY[date_part('epoch', now - began)::real] END);
    END IF;
    IF goal = 'pending' AND coalesce(delay, 0) = 0 THEN
        PERFORM {schema}._jobs_ring();
    END IF;
    RETURN true;
END $$;

-- The run that a worker wants to end: locked until the transaction ends, so that it is decided by what it will be.
CREATE FUNCTION {schema}._jobs_hold(
    id uuid, version integer, worker text, OUT status text, OUT due timestamptz, OUT retries integer,
    OUT max_retries integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM {schema}._jobs_check_run(id, version, worker);
    SELECT j.status, greatest(j.run_at, j.created), j.retries, j.max_retries INTO status, due, retries, max_retries
    FROM {schema}._jobs j
    WHERE j.id = _jobs_hold.id AND j.version = _jobs_hold.version AND j.locked_by = _jobs_hold.worker
      AND j.status IN ('processing', 'cancel_requested')
    FOR NO KEY UPDATE;
END $$;

-- A job's id, if there is one; completed jobs too. A range, and its order: planned while the archive was empty, a search for
-- one id would go through any index that holds ids, from one end to the other. Only the primary key has them in order.
CREATE FUNCTION {schema}._jobs_find(id uuid)
RETURNS uuid LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT j.id FROM (SELECT id FROM {schema}._jobs UNION ALL SELECT id FROM {schema}._jobs_archive) j
        WHERE j.id BETWEEN _jobs_find.id AND _jobs_find.id ORDER BY j.id LIMIT 1);
END $$;

-- ── For clients ──

-- The id of the new job; or of the one that was there before: with the same id, or live with the same topic and key.
CREATE FUNCTION {schema}.enqueue_job(
    topic text, payload json DEFAULT '{}', run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    key text DEFAULT NULL, priority integer DEFAULT 100, max_retries integer DEFAULT 3,
    timeout interval DEFAULT '10 minutes', expires_at timestamptz DEFAULT NULL, scope text DEFAULT NULL,
    scope_id text DEFAULT NULL, tags text[] DEFAULT NULL, trace text DEFAULT NULL, id uuid DEFAULT NULL,
    notify boolean DEFAULT true)
RETURNS uuid LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    now timestamptz;
    new_id uuid := enqueue_job.id;
    wait double precision := 0;
    longest double precision;
    found_id uuid;
BEGIN
    IF delay IS NOT NULL THEN
        wait := {schema}._jobs_check_span(delay, 'delay', 0, 316224000);
        IF enqueue_job.run_at IS NOT NULL AND wait > 0 THEN
            PERFORM {schema}._jobs_refuse('delay', 'both_given', 'give run_at or delay, not both');
        END IF;
    END IF;
    PERFORM {schema}._jobs_check_time(enqueue_job.run_at, 'run_at');
    PERFORM {schema}._jobs_check_topic(enqueue_job.topic, 'topic');
    IF json_typeof(enqueue_job.payload) <> 'object' THEN
        PERFORM {schema}._jobs_refuse(
            'payload', 'not_an_object', 'must be a JSON object, not ' || json_typeof(enqueue_job.payload));
    END IF;
    PERFORM {schema}._jobs_check_json(enqueue_job.payload, 'payload');
    PERFORM {schema}._jobs_check_number(enqueue_job.priority, 'priority', -2147483647, 2147483647);
    PERFORM {schema}._jobs_check_time(enqueue_job.expires_at, 'expires_at');
    PERFORM {schema}._jobs_check_text(enqueue_job.key, 'key', 512);
    PERFORM {schema}._jobs_check_text(enqueue_job.scope, 'scope', 512);
    PERFORM {schema}._jobs_check_text(enqueue_job.scope_id, 'scope_id', 512);
    PERFORM {schema}._jobs_check_number(enqueue_job.max_retries, 'max_retries', 0, 1000000);
    longest := {schema}._jobs_check_span(enqueue_job.timeout, 'timeout', 0, 316224000);
    IF longest = 0 THEN
        PERFORM {schema}._jobs_refuse('timeout', 'out_of_range', 'must be more than 0 seconds');
    END IF;
    IF array_ndims(enqueue_job.tags) > 1 OR cardinality(enqueue_job.tags) > 32 THEN
        PERFORM {schema}._jobs_refuse('tags', 'too_many', 'must be a list of at most 32 texts');
    END IF;
    FOR n IN 1..coalesce(cardinality(enqueue_job.tags), 0) LOOP
        PERFORM {schema}._jobs_check_text(
            enqueue_job.tags[array_lower(enqueue_job.tags, 1) + n - 1], format('tags[%s]', n - 1), 128, true);
    END LOOP;
    PERFORM {schema}._jobs_check_text(enqueue_job.trace, 'trace', 512);

    IF enqueue_job.id IS NOT NULL THEN  -- a repeat, more often than not: then nothing need be written
        found_id := {schema}._jobs_find(new_id);
        IF found_id IS NOT NULL THEN
            RETURN found_id;
        END IF;
    END IF;
    FOR attempt IN 1..8 LOOP
        now := clock_timestamp();
        new_id := coalesce(enqueue_job.id, {schema}._jobs_new_id(now));
        INSERT INTO {schema}._jobs (
            id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
            max_retries, timeout, tags, trace, created, updated, stray)
        VALUES (
            new_id, enqueue_job.topic, coalesce(enqueue_job.payload, '{}'), 'pending', enqueue_job.priority,
            coalesce(enqueue_job.run_at, now + wait * interval '1 second'),
            coalesce(enqueue_job.run_at <= now, wait = 0),
            enqueue_job.expires_at, enqueue_job.key, enqueue_job.scope, enqueue_job.scope_id, 0,
            enqueue_job.max_retries, longest,
            CASE WHEN cardinality(enqueue_job.tags) > 0 THEN to_jsonb(enqueue_job.tags) END, enqueue_job.trace, now, now,
            new_id < {schema}._jobs_first_id(now - interval '1 hour')
                OR new_id >= {schema}._jobs_first_id(now + interval '1 hour'))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- A job that was made and completed since we looked: from the insert on nobody can bring this id in.
            IF enqueue_job.id IS NOT NULL AND (
                SELECT a.id FROM {schema}._jobs_archive a WHERE a.id BETWEEN new_id AND new_id ORDER BY a.id LIMIT 1
            ) IS NOT NULL THEN
                DELETE FROM {schema}._jobs j WHERE j.id = new_id;
            ELSE
                PERFORM {schema}._jobs_note_enqueued(now, ARRAY[enqueue_job.topic], 1);
                IF notify THEN
                    PERFORM {schema}._jobs_ring();
                END IF;
            END IF;
            RETURN new_id;
        END IF;
        found_id := {schema}._jobs_find(new_id);
        IF found_id IS NULL THEN
            SELECT j.id INTO found_id FROM {schema}._jobs j
            WHERE j.topic = enqueue_job.topic AND j.key = enqueue_job.key AND j.key IS NOT NULL
              AND j.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')
            LIMIT 1;
        END IF;
        IF found_id IS NOT NULL THEN
            RETURN found_id;
        END IF;
        -- Whoever held the key ended between our INSERT and our look: it is free again.
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = format('key: %L was taken and freed 8 times', enqueue_job.key), HINT = 'Roll back and try again.';
END $$;

-- ── For workers ──

-- Jobs that are due, highest priority first, then oldest run_at: now this worker's, for as long as the lease. The runs have
-- begun: what is claimed here is meant to be started at once.
CREATE FUNCTION {schema}.claim_job_batch(
    worker text, topics text[], n integer DEFAULT 10, lease interval DEFAULT '30 seconds')
RETURNS TABLE (
    id uuid, version integer, topic text, payload json, priority integer, run_at timestamptz, key text, scope text,
    scope_id text, tags text[], trace text, retries integer, max_retries integer, timeout interval, last_error text,
    created timestamptz, locked_until timestamptz)
LANGUAGE plpgsql ROWS 10 SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    seconds double precision;
BEGIN
    PERFORM {schema}._jobs_check_text(worker, 'worker', 512, true);
    PERFORM {schema}._jobs_check_number(n, 'n', 1, 1000);
    seconds := {schema}._jobs_check_span(lease, 'lease', 0.5, 86400);
    IF topics IS NULL THEN
        PERFORM {schema}._jobs_refuse('topics', 'missing', 'must be given');
    END IF;
    PERFORM {schema}._jobs_check_topic(t, 'topics') FROM unnest(topics) t;

    -- promote: what has come due since anybody looked, for where no worker of rowlock's own is about
    WITH picked AS MATERIALIZED (
        SELECT ctid AS tid FROM {schema}._jobs
        WHERE status = 'pending' AND NOT ready AND run_at <= (SELECT clock_timestamp())
        ORDER BY run_at
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
    UPDATE {schema}._jobs SET ready = true WHERE ctid = ANY (ARRAY(SELECT tid FROM picked));

    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT l.topic FROM (SELECT DISTINCT topic FROM unnest(topics) AS l (topic)) l
        LEFT JOIN {schema}._jobs_topics t ON t.topic = l.topic
        WHERE t.paused_at IS NULL OR t.paused_until <= (SELECT clock_timestamp())
    ),
    -- The first of all lanes together, read without locks.
    top AS MATERIALIZED (
        SELECT l.topic FROM lane l CROSS JOIN LATERAL (
            SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
            WHERE j.ready AND j.topic = l.topic AND j.template_version = 0
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY -j.priority, j.run_at, j.id
            LIMIT n
        ) h
        ORDER BY h.rank, h.run_at, h.id
        LIMIT n
    ),
    -- How many from each lane: strict priority across lanes. A single lane may have them all: then nobody looks at `top`.
    take AS MATERIALIZED (
        SELECT l.topic, n AS most FROM lane l WHERE (SELECT count(*) FROM lane) = 1
        UNION ALL
        SELECT t.topic, count(*)::int FROM top t WHERE (SELECT count(*) FROM lane) > 1 GROUP BY t.topic
    ),
    -- MATERIALIZED: inlined into the UPDATE, SKIP LOCKED may take more than its LIMIT.
    picked AS MATERIALIZED (
        SELECT h.tid FROM take t CROSS JOIN LATERAL (
            SELECT j.ctid AS tid FROM {schema}._jobs j
            WHERE j.ready AND j.topic = t.topic AND j.template_version = 0
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY -j.priority, j.run_at, j.id
            LIMIT t.most
            FOR UPDATE SKIP LOCKED
        ) h
    ),
    claim_clock AS MATERIALIZED (
        SELECT now, now + seconds * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
    ),
    claimed AS (
        UPDATE {schema}._jobs j SET
            status = 'processing', ready = false, version = j.version + 1, locked_by = worker,
            locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
            started_at = (SELECT now FROM claim_clock),
            progress = 0, stage = NULL, message = NULL, updated = (SELECT now FROM claim_clock)
        WHERE j.ctid = ANY (ARRAY(SELECT tid FROM picked))
        RETURNING j.*
    )
    SELECT c.id, c.version, c.topic, c.payload, c.priority, c.run_at, c.key, c.scope, c.scope_id,
           ARRAY(SELECT jsonb_array_elements_text(c.tags)), c.trace, c.retries, c.max_retries,
           make_interval(secs => c.timeout), c.last_error, c.created, c.locked_until
    FROM claimed c
    ORDER BY -c.priority, c.run_at, c.id;
END $$;

-- kept; cancel: kept, and someone asked for its cancel; lost: stop, whatever this run does now is another's business.
CREATE FUNCTION {schema}.heartbeat_job(id uuid, version integer, worker text, lease interval DEFAULT '30 seconds')
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    seconds double precision := {schema}._jobs_check_span(lease, 'lease', 0.5, 86400);
    found_status text;
BEGIN
    PERFORM {schema}._jobs_check_run(id, version, worker);
    UPDATE {schema}._jobs j SET
        locked_until = greatest(j.locked_until, clock_timestamp() + seconds * interval '1 second')
    WHERE j.id = heartbeat_job.id AND j.version = heartbeat_job.version AND j.locked_by = heartbeat_job.worker
      AND j.status IN ('processing', 'cancel_requested')
    RETURNING j.status INTO found_status;
    RETURN CASE found_status WHEN 'processing' THEN 'kept' WHEN 'cancel_requested' THEN 'cancel' ELSE 'lost' END;
END $$;

-- applied; already: this run had completed before; lost: the run is over, nothing was written.
CREATE FUNCTION {schema}.complete_job(id uuid, version integer, worker text, result json DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    ended integer;
BEGIN
    PERFORM {schema}._jobs_check_run(id, version, worker);
    PERFORM {schema}._jobs_check_json(complete_job.result, 'result');
    -- The guard is in the DELETE itself, which waits for whoever holds the row and then looks again.
    WITH gone AS (
        DELETE FROM {schema}._jobs j
        WHERE j.id = complete_job.id AND j.version = complete_job.version AND j.locked_by = complete_job.worker
          AND j.status IN ('processing', 'cancel_requested')
        RETURNING j.*
    ),
    settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
    archived AS (
        INSERT INTO {schema}._jobs_archive (
            id, created, updated, run_at, expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at,
            timeout, template_version, priority, version, retries, max_retries, crashes, history_dropped, topic,
            locked_by, key, scope, scope_id, step, stage, message, cancel_reason, trace, flow_id, schedule_id, tags,
            payload, result, last_error, history, stray, log, log_dropped)
        SELECT g.id, g.created, (SELECT now FROM settle_clock), g.run_at, g.expires_at, g.claimed_at, g.started_at,
               (SELECT now FROM settle_clock), g.cancel_requested_at, g.fire_at, g.timeout, g.template_version,
               g.priority, g.version, g.retries, g.max_retries, g.crashes, g.history_dropped, g.topic, g.locked_by,
               g.key, g.scope, g.scope_id, g.step, g.stage, g.message, g.cancel_reason, g.trace, g.flow_id,
               g.schedule_id, g.tags, g.payload, complete_job.result, g.last_error, g.history, g.stray, g.log,
               g.log_dropped
        FROM gone g
        ON CONFLICT (id) DO NOTHING  -- an id that was used twice: its first completion stands
        RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
    ),
    counted AS (
        INSERT INTO {schema}._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
        SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
               coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
               array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
               array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
        FROM archived GROUP BY topic
    )
    SELECT count(*) INTO ended FROM gone;
    RETURN CASE ended WHEN 1 THEN 'applied'
                ELSE {schema}._jobs_verdict(complete_job.id, complete_job.version, complete_job.worker, '{completed}') END;
END $$;

-- The same answers. Tried again after `delay` (retries² minutes by default) while retries are left; `final`: not any more.
-- Of a job whose cancel was requested nothing else comes than that it is cancelled.
CREATE FUNCTION {schema}.fail_job(
    id uuid, version integer, worker text, error text, delay interval DEFAULT NULL, final boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    run record := {schema}._jobs_hold(id, version, worker);
    said text := {schema}._jobs_clean(error, 1048576);
    seconds double precision;
    done boolean;
BEGIN
    IF said IS NULL THEN
        PERFORM {schema}._jobs_refuse('error', 'missing', 'must be given');
    END IF;
    IF delay IS NOT NULL THEN
        seconds := {schema}._jobs_check_span(delay, 'delay', 0, 316224000);
    END IF;
    IF run.status = 'cancel_requested' THEN
        done := {schema}._jobs_end_run(
            id, version, worker, run.status, run.due, 'cancelled', 'cancelled', NULL, false, said, NULL);
    ELSIF final THEN
        done := {schema}._jobs_end_run(id, version, worker, run.status, run.due, 'failed', 'failed', NULL, false, said, NULL);
    ELSIF run.retries >= run.max_retries THEN
        said := {schema}._jobs_clean('Max retries exceeded: ' || said, 1048576);
        done := {schema}._jobs_end_run(id, version, worker, run.status, run.due, 'failed', 'failed', NULL, false, said, NULL);
    ELSIF run.status = 'processing' THEN
        seconds := coalesce(seconds, least(60.0 * (run.retries + 1) ^ 2, 316224000));
        done := {schema}._jobs_end_run(
            id, version, worker, run.status, run.due, 'pending', 'retried', seconds, true, said, NULL);
    END IF;
    RETURN CASE WHEN done THEN 'applied'
                ELSE {schema}._jobs_verdict(id, version, worker, '{retried,failed,cancelled}') END;
END $$;

-- Given back by a worker that stops, in its old place and at no cost. The same answers.
CREATE FUNCTION {schema}.release_job(id uuid, version integer, worker text, reason text DEFAULT 'shutdown')
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    run record := {schema}._jobs_hold(id, version, worker);
    said text := {schema}._jobs_clean(reason, 4096);
    done boolean;
BEGIN
    IF run.status = 'cancel_requested' THEN
        done := {schema}._jobs_end_run(
            id, version, worker, run.status, run.due, 'cancelled', 'cancelled', NULL, false, NULL, NULL);
    ELSIF run.status = 'processing' THEN
        done := {schema}._jobs_end_run(
            id, version, worker, run.status, run.due, 'pending', 'released', NULL, false, NULL, said);
    END IF;
    RETURN CASE WHEN done THEN 'applied' ELSE {schema}._jobs_verdict(id, version, worker, '{released,cancelled}') END;
END $$;

-- ── For whoever keeps watch ──

-- Takes back jobs whose lease has run out; how many. A server that came up within `grace` has had its clients locked out:
-- they get so long to renew their leases.
CREATE FUNCTION {schema}.rescue_jobs(
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
               j.retries < j.max_retries AS may_retry,
               CASE WHEN j.crashes > 0 THEN 60.0 * least(j.retries + 1, 32) ^ 2 END AS backoff,  -- the first: at once
               clock_timestamp() AS now
        FROM {schema}._jobs j
        WHERE j.locked_until < (SELECT clock_timestamp())
        ORDER BY j.locked_until
        LIMIT n
        FOR UPDATE SKIP LOCKED
    ),
    decided AS MATERIALIZED (
        SELECT *,
               CASE WHEN was = 'cancel_requested' THEN 'cancelled' WHEN started AND NOT may_retry THEN 'expired'
                    ELSE 'pending' END AS goal,
               was = 'processing' AND started AND may_retry AS charged,
               CASE WHEN was = 'processing' AND started
                    THEN 'Task timed out (worker crashed?): worker ' || worker END AS error
        FROM picked
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
