-- One JSON text has all runs and their marks, so that the statement serves the store, ctx.transaction() and any caller's
-- connection: [{"id", "run", "worker", "step", "percent", "marks": [{"name", "n", …}, …]}, …], each job once.
-- It waits for locked rows, in the order of ids. The guard is checked outside: see fence.sql.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::text::json)
        AS asked (id uuid, run int, worker text, step text, percent float8, marks json)
    ORDER BY id
),
held AS MATERIALIZED (
    SELECT asked.*, h.* FROM asked CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by
        FROM {schema}._jobs j WHERE j.id = asked.id FOR NO KEY UPDATE
    ) h
),
ok AS MATERIALIZED (
    SELECT *, clock_timestamp() AS now FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
marked AS (
    UPDATE {schema}._jobs j SET step = ok.step, progress = coalesce(ok.percent, j.progress), updated = ok.now
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
),
stored AS (
    INSERT INTO {schema}._jobs_steps AS s (
        job_id, name, n, position, function, state, retries, cancelable, version, started_at, finished_at, result, error,
        deadline)
    SELECT ok.id, m.name, m.n, m.position, m.function, m.state, m.retries, m.cancelable, ok.run,
           ok.now - m.age * interval '1 second', CASE WHEN m.state NOT IN ('pending', 'running') THEN ok.now END,
           m.result::json, m.error, ok.now + m.lasts * interval '1 second'
    FROM marked JOIN ok ON ok.id = marked.id CROSS JOIN LATERAL json_to_recordset(ok.marks) AS m (
        name text, n int, position int, function text, state text, retries int, cancelable bool, age float8, result text,
        error text, lasts float8)
    ON CONFLICT (job_id, name, n) DO UPDATE SET
        position = excluded.position, function = excluded.function, state = excluded.state, retries = excluded.retries,
        cancelable = excluded.cancelable, version = excluded.version, result = excluded.result, error = excluded.error,
        -- A wait, which has a deadline, keeps its start and its deadline.
        started_at = CASE WHEN s.version = excluded.version AND s.retries = excluded.retries OR s.deadline IS NOT NULL THEN s.started_at
                          ELSE excluded.started_at END,
        finished_at = excluded.finished_at, deadline = coalesce(excluded.deadline, s.deadline)
    WHERE s.state NOT IN ('succeeded', 'failed')  -- an end stays
        AND NOT (s.version = excluded.version AND excluded.state = 'running')  -- it may come late: see StepMark
)
-- `written` is false for a row that was changed since our snapshot: it is locked, but too new for the UPDATE.
SELECT coalesce(json_agg(json_build_array(held.id, held.status, held.version, held.locked_by, marked.id IS NOT NULL)), '[]')::text
FROM held LEFT JOIN marked ON marked.id = held.id
