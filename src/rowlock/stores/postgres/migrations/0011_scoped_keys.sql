-- A key belongs to its scope: one live job per (topic, scope, scope_id, key), so that tenants can't block each other.

-- NULLs are distinct in a unique index, so NULL is a text of its own here. An entry of an index has 2,700 bytes at most, and a
-- key alone may have 2,048, so of a long text there is only a digest. No two values give the same text.
CREATE FUNCTION {schema}._jobs_short(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN value IS NULL THEN '' WHEN octet_length(value) <= 200 THEN '=' || value
           ELSE '#' || encode(sha256(convert_to(value, 'UTF8')), 'hex') END
$$;

-- What was unique by (key, topic) is unique by more columns, so this can't fail. The new index is built before the old one
-- goes, and both in one transaction: at no time can two live jobs have one key. It gets the old one's name, by which it is
-- looked for. The lock that DROP INDEX needs is taken first: a transaction that has read _jobs and then writes would make a
-- deadlock of it later. Until the migration commits, other transactions wait when they come to _jobs. The new index is made by
-- reading the table once; only live jobs that have a key are entered.
LOCK TABLE {schema}._jobs IN ACCESS EXCLUSIVE MODE;
CREATE UNIQUE INDEX _jobs_live_scoped_key
    ON {schema}._jobs (key, topic, {schema}._jobs_short(scope), {schema}._jobs_short(scope_id))
    WHERE key IS NOT NULL AND status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested');
DROP INDEX {schema}._jobs_live_key;
ALTER INDEX {schema}._jobs_live_scoped_key RENAME TO _jobs_live_key;

-- As before, except that the job that answers is of the same scope and scope_id.
CREATE OR REPLACE FUNCTION {schema}.enqueue_job(
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
              AND {schema}._jobs_short(j.scope) = {schema}._jobs_short(enqueue_job.scope)
              AND {schema}._jobs_short(j.scope_id) = {schema}._jobs_short(enqueue_job.scope_id)
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
