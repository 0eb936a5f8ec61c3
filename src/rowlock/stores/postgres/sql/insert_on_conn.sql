-- insert.sql on a caller's connection. One text has all parameters and one text is the answer, with times as microseconds.
-- So it works with any driver and whatever parameter style, adapters, codecs and row factories the caller has set.
WITH clock AS MATERIALIZED (
    SELECT now, {schema}._jobs_first_id(now - interval '1 hour') AS low,
           {schema}._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
s AS (
    -- A field of type json keeps its text, as the column does.
    SELECT * FROM json_to_recordset($1::text::json) AS s (
        n int, id uuid, topic text, payload json, priority int, run_at bigint, delay float8, expires_at bigint,
        key text, scope text, scope_id text, template_version int, max_retries int, timeout float8, tags jsonb,
        trace text, if_live text, line text, flow_id uuid, blocked bool, share text)
),
ins AS (
    INSERT INTO {schema}._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray, if_live, line, line_seq, flow_id, share)
    SELECT s.id, s.topic, s.payload, CASE WHEN s.blocked IS TRUE THEN 'blocked' ELSE 'pending' END, s.priority,
           coalesce({schema}._jobs_time(s.run_at), now + s.delay * interval '1 second'),
           s.blocked IS NOT TRUE AND coalesce({schema}._jobs_time(s.run_at) <= now, s.delay = 0),
           {schema}._jobs_time(s.expires_at), s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout,
           s.tags, s.trace, now, now, s.id < low OR s.id >= high, s.if_live, s.line,
           CASE WHEN s.if_live IS NOT NULL THEN nextval('{schema}._jobs_line_seq') END, s.flow_id, s.share
    -- Batches that take keys in the same order can't deadlock. The jobs of a line get their places in this order, too.
    FROM (SELECT * FROM s ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n) s, clock
    ON CONFLICT DO NOTHING
    RETURNING id, topic
)
SELECT json_build_object(
    'now', {schema}._jobs_us((SELECT now FROM clock)),
    -- NULL if all are new
    'ids', CASE WHEN count(*) < (SELECT count(*) FROM s) THEN coalesce(json_agg(id), '[]') END,
    'noted', {schema}._jobs_note_enqueued((SELECT now FROM clock), array_agg(topic), 1)
)::text
FROM ins
