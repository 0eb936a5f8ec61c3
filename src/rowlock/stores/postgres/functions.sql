-- For clients without rowlock's library: any language that speaks SQL can enqueue and work by these functions (docs/sql.md).
-- They run with the rights of their caller. Claim, settle and complete are the store's own: functions.py puts them in.
--
-- Change them here, and raise REVISION in functions.py: `rowlock migrate` applies the new text. Arguments and answers can't
-- change (CREATE OR REPLACE refuses it); a new function can be added. A helper must not be dropped: a session may be in the
-- middle of an older function that calls it. So migration 0005's _jobs_end_run stays in the database, and is not called.
--
-- Functions on the hot path plan like the store's sessions: once, and never with a scan of a table that was empty then.

-- ── Checks of arguments ──

-- Raises invalid_parameter_value. The error's column is the field; its detail is a code that programs may rely on.
CREATE OR REPLACE FUNCTION {schema}._jobs_refuse(field text, code text, problem text, hint text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code, HINT = hint;
END $$;

CREATE OR REPLACE FUNCTION {schema}._jobs_check_text(value text, field text, most integer, needed boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL AND needed THEN
        PERFORM {schema}._jobs_refuse(field, 'missing', 'must be given');
    ELSIF char_length(value) NOT BETWEEN 1 AND most THEN
        PERFORM {schema}._jobs_refuse(
            field, 'bad_length', format('must be 1 to %s characters, not %s', most, char_length(value)));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {schema}._jobs_check_topic(topic text, field text) RETURNS void LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION {schema}._jobs_check_number(value bigint, field text, low bigint, high bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL OR value NOT BETWEEN low AND high THEN
        PERFORM {schema}._jobs_refuse(
            field, 'out_of_range', format('must be %s to %s, not %s', low, high, coalesce(value::text, 'NULL')));
    END IF;
END $$;

-- Returns the seconds.
CREATE OR REPLACE FUNCTION {schema}._jobs_check_span(value interval, field text, low double precision, high double precision)
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

CREATE OR REPLACE FUNCTION {schema}._jobs_check_time(value timestamptz, field text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT isfinite(value) OR extract(year FROM value AT TIME ZONE 'UTC') NOT BETWEEN 1900 AND 9000 THEN
        PERFORM {schema}._jobs_refuse(
            field, 'time_range', format('%s is not between the years 1900 and 9000', value));
    END IF;
END $$;

-- Every write of a worker needs all three.
CREATE OR REPLACE FUNCTION {schema}._jobs_check_run(id uuid, version integer, worker text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF id IS NULL OR version IS NULL OR worker IS NULL THEN
        PERFORM {schema}._jobs_refuse(
            CASE WHEN id IS NULL THEN 'id' WHEN version IS NULL THEN 'version' ELSE 'worker' END, 'missing',
            'must be given');
    END IF;
END $$;

-- The limits of rowlock's encoder, which every store can keep. The text is stored as it comes.
CREATE OR REPLACE FUNCTION {schema}._jobs_check_json(value json, field text) RETURNS void LANGUAGE plpgsql AS $$
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
    -- Most texts pass by this: no escapes, no number that may be too large, too few brackets to be too deep.
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

-- Cuts out the middle of a text that is too long: the beginning and the end of an error say the most.
CREATE OR REPLACE FUNCTION {schema}._jobs_clean(said text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
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

-- A UUIDv7: the milliseconds, then the rest of the time in units of 1/4096 ms, then random bits.
CREATE OR REPLACE FUNCTION {schema}._jobs_new_id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
    FROM (SELECT {schema}._jobs_us(at) AS us) t
$$;

-- Wakes waiting workers when the transaction commits. They hold this lock, shared (see doorbell.py). If no worker waits, no
-- NOTIFY is sent, because it takes a lock of the whole server. The lock is given back at once, because the caller's
-- transaction may be long.
CREATE OR REPLACE FUNCTION {schema}._jobs_ring() RETURNS void LANGUAGE plpgsql AS $$
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

-- Why a write of a run was refused: `already` if the run had ended so before, and the caller missed the answer; else `lost`.
CREATE OR REPLACE FUNCTION {schema}._jobs_verdict(id uuid, version integer, worker text, events text[])
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN CASE WHEN (
        SELECT CASE WHEN j.status = 'completed' AND j.version = _jobs_verdict.version
                         AND j.locked_by = _jobs_verdict.worker THEN 'completed'
               ELSE (SELECT e->>'event' FROM jsonb_array_elements(j.history) WITH ORDINALITY AS h (e, n)
                     WHERE (e->>'version')::int = _jobs_verdict.version AND e ? 'claimed_at'
                       -- A rescue or an operator names the run's worker; a worker that ends its run is `by`.
                       AND coalesce(e->>'worker', e->>'by') = _jobs_verdict.worker
                     ORDER BY n DESC LIMIT 1) END
        FROM {schema}._jobs_all j  -- a range: see _jobs_find
        WHERE j.id BETWEEN _jobs_verdict.id AND _jobs_verdict.id ORDER BY j.id LIMIT 1
    ) = ANY (events) THEN 'already' ELSE 'lost' END;
END $$;

-- Ends a run that does not complete; false if it is over already. `retries`: the new number, or NULL if this end costs none.
-- The caller has locked the row by _jobs_hold: a settle that had to wait for the lock would miss the change it waited for.
CREATE OR REPLACE FUNCTION {schema}._jobs_settle(
    id uuid, version integer, worker text, goal text, event text, delay double precision, retries integer, error text,
    reason text)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    history_entry text := jsonb_strip_nulls(jsonb_build_object(
        'event', event, 'status', goal, 'version', version, 'delay', nullif(delay, 0),
        'error', {schema}._jobs_clean(error, 4096), 'reason', reason));
    done boolean;
BEGIN
    WITH
    {settle}
    SELECT applied IS NULL INTO done FROM settle_summary;
    IF done AND goal = 'pending' AND coalesce(delay, 0) = 0 THEN
        PERFORM {schema}._jobs_ring();
    END IF;
    RETURN done;
END $$;

-- Locks the run that a worker wants to end until the transaction ends, so that its status can't change meanwhile.
CREATE OR REPLACE FUNCTION {schema}._jobs_hold(
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

-- Returns the id if there is such a job, completed or not. By a range: see read.sql.
CREATE OR REPLACE FUNCTION {schema}._jobs_find(id uuid)
RETURNS uuid LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT j.id FROM (SELECT id FROM {schema}._jobs UNION ALL SELECT id FROM {schema}._jobs_archive) j
        WHERE j.id BETWEEN _jobs_find.id AND _jobs_find.id ORDER BY j.id LIMIT 1);
END $$;

-- ── For clients ──

-- The newest enabled template of a topic; no row if it has none. Refuses a topic that is disabled, and one whose keys or
-- lines only rowlock's library can make. It runs with the rights of its owner: clients need none on the templates.
CREATE OR REPLACE FUNCTION {schema}._jobs_template(topic text, OUT version integer, OUT definition json)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found_any boolean;
BEGIN
    SELECT t.version, t.definition INTO version, definition FROM {schema}._jobs_templates t
    WHERE t.topic = _jobs_template.topic AND t.enabled ORDER BY t.version DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT true INTO found_any FROM {schema}._jobs_templates t WHERE t.topic = _jobs_template.topic LIMIT 1;
        IF found_any THEN
            PERFORM {schema}._jobs_refuse(
                'topic', 'template_disabled', format('%s is disabled: an operator must enable it first', topic));
        END IF;
    ELSIF json_typeof(definition->'key') = 'array' OR (definition->>'once')::bool
          OR definition->>'if_live' IN ('queue', 'replace') OR json_typeof(definition->'debounce') = 'object'
          OR json_typeof(definition->'throttle') = 'number' THEN
        PERFORM {schema}._jobs_refuse(
            'topic', 'needs_library', format('%s has a key of its own, a line, a window or jobs that run once', topic),
            'Enqueue it with rowlock''s library, its command line or over HTTP.');
    END IF;
END $$;

-- The values by which limits count a job (core/limits.py), as the library writes them; NULL: the topic has no limit by a field.
-- It runs with the rights of its owner: clients need none on the records.
CREATE OR REPLACE FUNCTION {schema}._jobs_share(topic text, payload json, key text, scope text, scope_id text)
RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    share text;
    wrong text;
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}._jobs_topics t WHERE t.limited AND t.topic = _jobs_share.topic) THEN
        RETURN NULL;
    END IF;
    WITH code AS (
        SELECT l FROM {schema}._jobs_records r CROSS JOIN json_array_elements(r.data->'limits') l
        WHERE r.kind = 'limited' AND r.id = _jobs_share.topic
    ),
    put AS (
        SELECT r.data->'limit' AS l FROM {schema}._jobs_records r
        WHERE r.kind = 'limit' AND r.data->>'value' IS NULL
          AND (r.data->>'name' = _jobs_share.topic OR r.data->>'name' IN (SELECT l->>'name' FROM code))
    ),
    fields AS (  -- turns that were put take the place of those in the code, whatever they are by
        SELECT l->>'by' AS name FROM put
        UNION
        SELECT l->>'by' FROM code WHERE l->>'kind' <> 'fair' OR NOT EXISTS (SELECT FROM put WHERE l->>'kind' = 'fair')
    ),
    spelled AS (  -- payload.tenant is tenant; a field of the payload with a name of ours keeps the prefix
        SELECT DISTINCT regexp_replace(name, '^payload[.](?!(?:key|scope|scope_id)$)([^.]+)$', '\1') AS name
        FROM fields WHERE name IS NOT NULL
    ),
    known AS (
        SELECT name, CASE WHEN name IN ('key', 'scope', 'scope_id')
                          THEN json_build_object('key', key, 'scope', scope, 'scope_id', scope_id)->name
                          WHEN name LIKE 'payload.%'
                          THEN coalesce(payload, '{}') #> string_to_array(substr(name, 9), '.')
                          ELSE coalesce(payload, '{}')->name
                     END AS value
        FROM spelled
    ),
    texts AS (
        SELECT name, coalesce(value #>> '{}', '') AS said,
               json_typeof(value) IN ('object', 'array')
                   OR (json_typeof(value) = 'number' AND value::text !~ '^(0|-?[1-9][0-9]*)$') AS is_wrong
        FROM known
    )
    SELECT min(name) FILTER (WHERE is_wrong), '{' || string_agg(
               to_json(name)::text || ':' || to_json(CASE WHEN char_length(said) <= 200 THEN said
                   ELSE 'sha256:' || encode(sha256(convert_to(said, 'UTF8')), 'hex') END)::text,
               ',' ORDER BY name COLLATE "C") || '}'
    INTO wrong, share FROM texts;
    IF wrong IS NOT NULL THEN
        PERFORM {schema}._jobs_refuse(
            'payload', 'needs_library',
            format('%s has a limit by %s, and SQL can only count texts, whole numbers, true, false and null', topic, wrong),
            'Enqueue it with rowlock''s library, its command line or over HTTP.');
    END IF;
    RETURN share;
END $$;

-- Returns the id of the new job, or of the job that was there before: with this id, or live with this topic, scope and key.
-- What is not given comes from the topic's template. The payload is checked when the handler starts.
CREATE OR REPLACE FUNCTION {schema}.enqueue_job(
    topic text, payload json DEFAULT '{}', run_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL,
    key text DEFAULT NULL, priority integer DEFAULT NULL, max_retries integer DEFAULT NULL,
    timeout interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL, scope text DEFAULT NULL,
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
    template record;
    share text;
BEGIN
    PERFORM {schema}._jobs_check_topic(enqueue_job.topic, 'topic');
    template := {schema}._jobs_template(enqueue_job.topic);
    priority := coalesce(enqueue_job.priority, (template.definition->>'priority')::int, 100);
    max_retries := coalesce(enqueue_job.max_retries, (template.definition->>'max_retries')::int, 3);
    timeout := coalesce(
        enqueue_job.timeout, make_interval(secs => (template.definition->>'timeout')::float8), '10 minutes');
    IF delay IS NOT NULL THEN
        wait := {schema}._jobs_check_span(delay, 'delay', 0, 316224000);
        IF enqueue_job.run_at IS NOT NULL AND wait > 0 THEN
            PERFORM {schema}._jobs_refuse('delay', 'both_given', 'give run_at or delay, not both');
        END IF;
    END IF;
    PERFORM {schema}._jobs_check_time(enqueue_job.run_at, 'run_at');
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
    share := {schema}._jobs_share(
        enqueue_job.topic, enqueue_job.payload, enqueue_job.key, enqueue_job.scope, enqueue_job.scope_id);
    FOR attempt IN 1..8 LOOP
        now := clock_timestamp();
        new_id := coalesce(enqueue_job.id, {schema}._jobs_new_id(now));
        INSERT INTO {schema}._jobs (
            id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
            max_retries, timeout, tags, trace, share, created, updated, stray)
        VALUES (
            new_id, enqueue_job.topic, coalesce(enqueue_job.payload, '{}'), 'pending', enqueue_job.priority,
            coalesce(enqueue_job.run_at, now + wait * interval '1 second'),
            coalesce(enqueue_job.run_at <= now, wait = 0),
            enqueue_job.expires_at, enqueue_job.key, enqueue_job.scope, enqueue_job.scope_id,
            coalesce(template.version, 0),
            enqueue_job.max_retries, longest,
            CASE WHEN cardinality(enqueue_job.tags) > 0 THEN to_jsonb(enqueue_job.tags) END, enqueue_job.trace, share, now, now,
            new_id < {schema}._jobs_first_id(now - interval '1 hour')
                OR new_id >= {schema}._jobs_first_id(now + interval '1 hour'))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- Has a job with this id been inserted and completed since _jobs_find? After our INSERT none can come.
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
              AND {schema}._jobs_short(j.scope) = {schema}._jobs_short(enqueue_job.scope)
              AND {schema}._jobs_short(j.scope_id) = {schema}._jobs_short(enqueue_job.scope_id)
              AND j.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')
            LIMIT 1;
        END IF;
        IF found_id IS NOT NULL THEN
            RETURN found_id;
        END IF;
        -- The job that held the key ended between our INSERT and our search: the key is free again.
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
        MESSAGE = format('key: %L was taken and freed 8 times', enqueue_job.key), HINT = 'Roll back and try again.';
END $$;

-- ── For workers ──

-- Claims jobs that are due: highest priority first, then oldest run_at. The worker holds them for as long as the lease. Their
-- runs count as started. A topic may have a version: 'mail@2'; without one it is version 0.
CREATE OR REPLACE FUNCTION {schema}.claim_job_batch(
    worker text, topics text[], n integer DEFAULT 10, lease interval DEFAULT '30 seconds')
RETURNS TABLE (
    id uuid, version integer, topic text, payload json, priority integer, run_at timestamptz, key text, scope text,
    scope_id text, tags text[], trace text, retries integer, max_retries integer, timeout interval, last_error text,
    created timestamptz, locked_until timestamptz)
LANGUAGE plpgsql ROWS 10 SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    lanes text;
    versions text;
    limited_topic text;
    seconds double precision;
BEGIN
    PERFORM {schema}._jobs_check_text(worker, 'worker', 512, true);
    PERFORM {schema}._jobs_check_number(n, 'n', 1, 1000);
    seconds := {schema}._jobs_check_span(lease, 'lease', 0.5, 86400);
    IF topics IS NULL THEN
        PERFORM {schema}._jobs_refuse('topics', 'missing', 'must be given');
    END IF;
    PERFORM {schema}._jobs_check_topic(split_part(t, '@', 1), 'topics') FROM unnest(topics) t;
    IF EXISTS (SELECT FROM unnest(topics) t WHERE t LIKE '%@%' AND t !~ '^[^@]+@[0-9]{1,7}$') THEN
        PERFORM {schema}._jobs_refuse('topics', 'bad_version', 'a version is a number: mail@2');
    END IF;
    SELECT string_agg(l.topic, ' '), string_agg(l.version, ' ') INTO lanes, versions FROM (
        SELECT DISTINCT split_part(t, '@', 1) AS topic, coalesce(nullif(split_part(t, '@', 2), ''), '0') AS version
        FROM unnest(topics) t) l;

    SELECT t.topic INTO limited_topic FROM {schema}._jobs_topics t
    WHERE t.limited AND t.topic = ANY (string_to_array(lanes, ' ')) ORDER BY t.topic LIMIT 1;
    IF FOUND THEN
        PERFORM {schema}._jobs_refuse('topics', 'limited',
            format('%s has limits, and SQL can''t keep them: run its jobs in a rowlock worker, or by HTTP', limited_topic));
    END IF;

    -- Promote jobs that have come due: there may be no Python worker that does it.
    WITH picked AS MATERIALIZED (
        SELECT ctid AS tid FROM {schema}._jobs
        WHERE status = 'pending' AND NOT ready AND run_at <= (SELECT clock_timestamp())
        ORDER BY run_at
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
    UPDATE {schema}._jobs SET ready = true WHERE ctid = ANY (ARRAY(SELECT tid FROM picked));

    RETURN QUERY WITH
    {claim}
    SELECT c.id, c.version, c.topic, c.payload, c.priority, c.run_at, c.key, c.scope, c.scope_id,
           ARRAY(SELECT jsonb_array_elements_text(c.tags)), c.trace, c.retries, c.max_retries,
           make_interval(secs => c.timeout), c.last_error, c.created, c.locked_until
    FROM claimed c
    ORDER BY -c.priority, c.run_at, c.id;
END $$;

-- kept: the lease is renewed. cancel: renewed, but a cancel was requested. lost: the run is over, stop it.
CREATE OR REPLACE FUNCTION {schema}.heartbeat_job(id uuid, version integer, worker text, lease interval DEFAULT '30 seconds')
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

-- applied. already: this run had completed before. lost: the run is over, nothing was written.
CREATE OR REPLACE FUNCTION {schema}.complete_job(id uuid, version integer, worker text, result json DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    ended integer;
BEGIN
    PERFORM {schema}._jobs_check_run(id, version, worker);
    PERFORM {schema}._jobs_check_json(complete_job.result, 'result');
    WITH
    {complete}
    SELECT count(*) INTO ended FROM gone;
    RETURN CASE ended WHEN 1 THEN 'applied'
                ELSE {schema}._jobs_verdict(complete_job.id, complete_job.version, complete_job.worker, '{completed}') END;
END $$;

-- The same answers. The job is tried again after `delay` (by default retries² minutes) while retries are left, unless
-- `final`. A job whose cancel was requested is cancelled instead.
CREATE OR REPLACE FUNCTION {schema}.fail_job(
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
        done := {schema}._jobs_settle(
            id, version, worker, 'cancelled', 'cancelled', NULL, NULL, said, NULL);
    ELSIF final THEN
        done := {schema}._jobs_settle(id, version, worker, 'failed', 'failed', NULL, NULL, said, NULL);
    ELSIF run.retries >= run.max_retries THEN
        said := {schema}._jobs_clean('Max retries exceeded: ' || said, 1048576);
        done := {schema}._jobs_settle(id, version, worker, 'failed', 'failed', NULL, NULL, said, NULL);
    ELSIF run.status = 'processing' THEN
        seconds := coalesce(seconds, least(60.0 * (run.retries + 1) ^ 2, 316224000));
        done := {schema}._jobs_settle(
            id, version, worker, 'pending', 'retried', seconds, run.retries + 1, said, NULL);
    END IF;
    RETURN CASE WHEN done THEN 'applied'
                ELSE {schema}._jobs_verdict(id, version, worker, '{retried,failed,cancelled}') END;
END $$;

-- A worker that stops gives the job back, in its old place and without costing a retry. The same answers.
CREATE OR REPLACE FUNCTION {schema}.release_job(id uuid, version integer, worker text, reason text DEFAULT 'shutdown')
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    run record := {schema}._jobs_hold(id, version, worker);
    said text := {schema}._jobs_clean(reason, 4096);
    done boolean;
BEGIN
    IF run.status = 'cancel_requested' THEN
        done := {schema}._jobs_settle(
            id, version, worker, 'cancelled', 'cancelled', NULL, NULL, NULL, NULL);
    ELSIF run.status = 'processing' THEN
        done := {schema}._jobs_settle(
            id, version, worker, 'pending', 'released', NULL, NULL, NULL, said);
    END IF;
    RETURN CASE WHEN done THEN 'applied' ELSE {schema}._jobs_verdict(id, version, worker, '{released,cancelled}') END;
END $$;

-- ── Maintenance ──

-- Rescues jobs whose lease has expired, and returns how many. Workers could not renew their leases while the server was down:
-- after a start of the server nothing is rescued for as long as `grace`.
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
               CASE WHEN crashes = 0 THEN NULL  -- after the first crash: at once
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
            expires_at = CASE WHEN d.charged THEN NULL ELSE j.expires_at END,  -- it bounds the first start
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
        RETURNING j.topic, j.line, j.status, d.charged
    ),
    ended AS (
        INSERT INTO {schema}._jobs_ends (line)
        SELECT DISTINCT line FROM rescued WHERE line IS NOT NULL AND status <> 'pending'
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
