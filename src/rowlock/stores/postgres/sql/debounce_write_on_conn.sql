-- Writes what newer enqueues have made of jobs that this transaction has locked. The parameter has a patch of
-- core.moves.Debounced for each. Without a run_at, the time stays.
WITH p AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::text::json) AS p (
        place text, payload json, priority int, template_version int, max_retries int, timeout float8, trace text, share text,
        expires_at bigint, tags jsonb, run_at bigint, ready bool, updated bigint, entry jsonb)
),
moved AS (
    UPDATE {schema}._jobs j SET
        payload = p.payload, priority = p.priority, template_version = p.template_version, max_retries = p.max_retries,
        timeout = p.timeout, trace = p.trace, share = p.share, expires_at = {schema}._jobs_time(p.expires_at), tags = p.tags,
        run_at = coalesce({schema}._jobs_time(p.run_at), j.run_at), ready = coalesce(p.ready, j.ready),
        updated = {schema}._jobs_time(p.updated),
        history_dropped = j.history_dropped + {schema}._jobs_overflow(j.history),
        history = {schema}._jobs_append(j.history, p.entry)
    FROM p
    WHERE j.ctid = p.place::tid
    RETURNING 1
)
SELECT count(*)::text FROM moved
