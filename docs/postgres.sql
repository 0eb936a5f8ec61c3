-- What rowlock runs on PostgreSQL, with all parts put together, for the schema `public`. Written by `make format`.
-- The sources are in src/rowlock/stores/postgres: sql/<name>.sql, sql/parts, statements.py and functions.sql.
--
-- Not here: the migrations, the lists of jobs (listing.py builds them from their filters), and the short statements of
-- partitions.py, connections.py and doorbell.py.

-- ════ add_signal ════

INSERT INTO public._jobs_signals (job_id, seq, name, signal_id, data, at, by)
VALUES ($1::uuid, $2::int, $3::text, $4::text, $5::text::json, public._jobs_time($6::bigint), $7::text);

-- ════ advance_again ════

INSERT INTO public._jobs_ends (line) SELECT unnest($1::text[]);

-- ════ advance_rows ════

-- What stands in these lines ($1), as far as `advance` needs it: the head; the first blocked job; and if a job replaces
-- others ($2: at most so many of them), all up to the newest such job. That may be the head: a transaction that commits
-- late brings jobs that are older. The head is locked only if it is to be replaced. It is not waited for: a handler's own
-- transaction may hold it for long. Nor is a job with debounce: its enqueuer's transaction may hold it. Then it is `first`, and
-- not `blocked`.
WITH line AS MATERIALIZED (
    SELECT l.line, r.line_seq AS newest FROM unnest($1::text[]) AS l (line) LEFT JOIN LATERAL (
        SELECT j.line_seq FROM public._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.if_live = 'replace'
        ORDER BY j.line_seq DESC LIMIT 1
    ) r ON true
),
head AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL
          AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested')
    ) h
),
held AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
        WHERE j.line_seq < l.newest AND j.line = l.line AND j.line IS NOT NULL
          AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested')
        FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
bounds AS MATERIALIZED (
    SELECT l.line, greatest(l.newest, h.line_seq) AS until FROM line l LEFT JOIN head h
        ON h.line = l.line AND h.if_live = 'replace' AND EXISTS (
            SELECT FROM public._jobs j
            WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.line_seq < h.line_seq)
),
blocked AS MATERIALIZED (
    SELECT h.* FROM bounds l CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked'
          AND j.line_seq <= coalesce(l.until, j.line_seq) AND j.if_live <> 'debounce'
        ORDER BY j.line_seq
        LIMIT CASE WHEN l.until IS NULL THEN 1 ELSE $2::int END
        FOR NO KEY UPDATE
    ) h
),
first AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.if_live = 'debounce'
        ORDER BY j.line_seq LIMIT 1
    ) h
),
debounced AS MATERIALIZED (
    SELECT h.* FROM first f CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j WHERE j.id = f.id::uuid AND j.status = 'blocked' FOR NO KEY UPDATE SKIP LOCKED
    ) h
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, 'head' AS role, head.* FROM head UNION ALL
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, 'held', held.* FROM held UNION ALL
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, 'blocked', blocked.* FROM blocked UNION ALL
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, 'first', first.* FROM first UNION ALL
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, 'blocked', debounced.* FROM debounced;

-- ════ advance_take ════

-- Takes the lines in which something has ended or come, and locks them against other calls of `advance`, in one order.
WITH taken AS MATERIALIZED (
    DELETE FROM public._jobs_ends WHERE n = ANY (ARRAY(
        SELECT n FROM public._jobs_ends ORDER BY n LIMIT $1::int FOR UPDATE SKIP LOCKED))
    RETURNING line
),
lines AS MATERIALIZED (SELECT DISTINCT line FROM taken ORDER BY line)
SELECT line, pg_advisory_xact_lock(('x' || left(line, 16))::bit(64)::bigint) FROM lines;

-- ════ audit_entry ════

INSERT INTO public._jobs_audit (at, by, action, topic, reason, data, job_id)
VALUES (clock_timestamp(), $1::text, $2::text, $3::text, $4::text, $5::text::json, $6::uuid);

-- ════ audited ════

SELECT id, at, by, action, job_id::text, topic, reason, data, bulk::text FROM public._jobs_audit
WHERE bulk IS NULL AND ($1::bigint IS NULL OR id < $1::bigint)
  AND ($3::uuid IS NULL OR bulk = $3::uuid) AND ($4::uuid IS NULL OR job_id = $4::uuid)
  AND ($5::text IS NULL OR by = $5::text) AND ($6::text IS NULL OR action = $6::text)
  AND ($7::timestamptz IS NULL OR at >= $7::timestamptz)
ORDER BY id DESC
LIMIT $2::int;

-- ════ audited_of_bulk ════

SELECT id, at, by, action, job_id::text, topic, reason, data, bulk::text FROM public._jobs_audit
WHERE bulk = $3::uuid AND ($1::bigint IS NULL OR id < $1::bigint)
  AND ($3::uuid IS NULL OR bulk = $3::uuid) AND ($4::uuid IS NULL OR job_id = $4::uuid)
  AND ($5::text IS NULL OR by = $5::text) AND ($6::text IS NULL OR action = $6::text)
  AND ($7::timestamptz IS NULL OR at >= $7::timestamptz)
ORDER BY id DESC
LIMIT $2::int;

-- ════ audited_of_job ════

SELECT id, at, by, action, job_id::text, topic, reason, data, bulk::text FROM public._jobs_audit
WHERE job_id = $4::uuid AND ($1::bigint IS NULL OR id < $1::bigint)
  AND ($3::uuid IS NULL OR bulk = $3::uuid) AND ($4::uuid IS NULL OR job_id = $4::uuid)
  AND ($5::text IS NULL OR by = $5::text) AND ($6::text IS NULL OR action = $6::text)
  AND ($7::timestamptz IS NULL OR at >= $7::timestamptz)
ORDER BY id DESC
LIMIT $2::int;

-- ════ bulk_create ════

INSERT INTO public._jobs_bulk AS b (id, created, total, action, status, by, reason, arguments, filter, unfit)
VALUES ($1::uuid, clock_timestamp(), $2::int, $3::text, 'preview', $4::text, $5::text, $6::text::json, $7::text::json,
        $8::text::json)
RETURNING b.id, b.action, b.status, b.arguments, b.filter, b.unfit, b.total, b.done, b.changed, b.gone, b.key_taken, b.locked, b.reason, b.by, b.started_by, b.created, b.started_at, b.moved_at, b.finished_at;

-- ════ bulk_items ════

SELECT job_id, status, outcome, holder FROM public._jobs_bulk_items
WHERE bulk_id = $1::uuid AND job_id >= $2::uuid
  AND ($3::text IS NULL OR CASE WHEN $3::text = 'unrun' THEN outcome IS NULL ELSE outcome = $3::text END)
ORDER BY job_id
LIMIT $4::int;

-- ════ bulk_next ════

SELECT job_id::text, status, public._jobs_us(created), events FROM public._jobs_bulk_items
WHERE bulk_id = $1::uuid AND job_id >= $2::uuid ORDER BY job_id LIMIT $3::int;

-- ════ bulk_note ════

-- Note the outcomes of a batch, in the jobs' order. No jobs: the bulk action is done. bulk_take has locked the row.
WITH noted AS (
    UPDATE public._jobs_bulk_items i SET outcome = o.outcome, holder = o.holder
    FROM unnest($2::uuid[], $3::text[], $4::uuid[]) AS o (job_id, outcome, holder)
    WHERE i.bulk_id = $1::uuid AND i.job_id = o.job_id
    RETURNING o.outcome
),
counted AS (
    SELECT count(*) FILTER (WHERE outcome = 'done') AS done, count(*) FILTER (WHERE outcome = 'changed') AS changed,
           count(*) FILTER (WHERE outcome = 'gone') AS gone, count(*) FILTER (WHERE outcome = 'key_taken') AS key_taken,
           count(*) FILTER (WHERE outcome = 'locked') AS locked, count(*) AS every, clock_timestamp() AS now
    FROM noted
)
UPDATE public._jobs_bulk b SET
    done = b.done + c.done, changed = b.changed + c.changed, gone = b.gone + c.gone,
    key_taken = b.key_taken + c.key_taken, locked = b.locked + c.locked, moved_at = c.now,
    reached = coalesce(($2::uuid[])[cardinality($2::uuid[])], b.reached),
    status = CASE WHEN c.every > 0 AND b.done + b.changed + b.gone + b.key_taken + b.locked + c.every < b.total
                  THEN b.status ELSE 'done' END,
    finished_at = CASE WHEN c.every > 0 AND b.done + b.changed + b.gone + b.key_taken + b.locked + c.every < b.total
                       THEN NULL ELSE c.now END
FROM counted c
WHERE b.id = $1::uuid
RETURNING b.id, b.action, b.status, b.arguments, b.filter, b.unfit, b.total, b.done, b.changed, b.gone, b.key_taken, b.locked, b.reason, b.by, b.started_by, b.created, b.started_at, b.moved_at, b.finished_at;

-- ════ bulk_prune ════

-- $1: rows at most. $2: seconds that previews are kept. $3: seconds that ended bulk actions are kept. The items of a bulk
-- action are deleted before it.
WITH old AS MATERIALIZED (
    SELECT b.id FROM public._jobs_bulk b
    WHERE CASE WHEN b.status = 'preview' THEN b.created <= clock_timestamp() - $2::float8 * interval '1 second'
               ELSE b.finished_at <= clock_timestamp() - $3::float8 * interval '1 second' END
    ORDER BY b.id LIMIT 10
    FOR UPDATE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT i.bulk_id, i.job_id FROM old CROSS JOIN LATERAL (
        SELECT * FROM public._jobs_bulk_items i WHERE i.bulk_id = old.id ORDER BY i.job_id LIMIT $1::int
    ) i
    LIMIT $1::int
),
gone AS (
    DELETE FROM public._jobs_bulk_items
    WHERE (bulk_id, job_id) IN (SELECT bulk_id, job_id FROM picked) RETURNING 1
),
gone_whole AS (
    DELETE FROM public._jobs_bulk
    WHERE id IN (SELECT old.id FROM old WHERE NOT EXISTS (
        SELECT 1 FROM public._jobs_bulk_items i WHERE i.bulk_id = old.id))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int + (SELECT count(*) FROM gone_whole)::int;

-- ════ bulk_start ════

-- $3, $4: for so many seconds a preview, or a stopped bulk action, may be started. Later, `bulk_prune` may have deleted
-- some of its items.
WITH started AS (
    UPDATE public._jobs_bulk b SET
        status = CASE WHEN b.done + b.changed + b.gone + b.key_taken + b.locked < b.total THEN 'running' ELSE 'done' END,
        finished_at = CASE WHEN b.done + b.changed + b.gone + b.key_taken + b.locked < b.total THEN NULL ELSE now END,
        started_at = coalesce(b.started_at, now), moved_at = now, started_by = $2::text,
        reason = coalesce($5::text, b.reason)
    FROM (SELECT clock_timestamp() AS now) c
    WHERE b.id = $1::uuid AND CASE b.status
        WHEN 'preview' THEN b.created > now - $3::float8 * interval '1 second'
        WHEN 'stopped' THEN b.finished_at > now - $4::float8 * interval '1 second'
        ELSE false END
    RETURNING b.*
),
audited AS (
    INSERT INTO public._jobs_audit (at, by, action, reason, data)
    SELECT moved_at, $2::text, 'bulk_start', reason, json_build_object(
        'bulk', id, 'action', action, 'arguments', arguments, 'filter', filter, 'count', total)
    FROM started
)
SELECT 1 FROM started;

-- ════ bulk_stop ════

-- The process that runs a batch has locked the row: this statement waits for the end of the batch.
WITH stopped AS (
    UPDATE public._jobs_bulk SET status = 'stopped', finished_at = clock_timestamp()
    WHERE id = $1::uuid AND status = 'running'
    RETURNING *
),
audited AS (
    INSERT INTO public._jobs_audit (at, by, action, reason, data)
    SELECT finished_at, $2::text, 'bulk_stop', $3::text, json_build_object(
        'bulk', id, 'done', done, 'left', total - done - changed - gone - key_taken - locked)
    FROM stopped
)
SELECT 1 FROM stopped;

-- ════ bulk_take ════

-- The process that has locked the row works on it. $2: how long to wait for a job, or a key, of another transaction.
SELECT b.id, b.action, b.status, b.arguments, b.filter, b.unfit, b.total, b.done, b.changed, b.gone, b.key_taken, b.locked, b.reason, b.by, b.started_by, b.created, b.started_at, b.moved_at, b.finished_at, b.reached, set_config('lock_timeout', $2::text, true)
FROM public._jobs_bulk b
WHERE b.status = 'running' AND ($1::uuid IS NULL OR b.id = $1::uuid)
ORDER BY b.moved_at
LIMIT 1
FOR NO KEY UPDATE SKIP LOCKED;

-- ════ bulk_undo ════

-- The pending jobs that an earlier bulk action cancelled and that nothing has changed since.
INSERT INTO public._jobs_bulk_items (bulk_id, job_id, status, created, events)
SELECT $1::uuid, job_id, 'cancelled', created, events + 1 FROM public._jobs_bulk_items
WHERE bulk_id = $2::uuid AND status = 'pending' AND outcome = 'done';

-- ════ bulks ════

SELECT b.id, b.action, b.status, b.arguments, b.filter, b.unfit, b.total, b.done, b.changed, b.gone, b.key_taken, b.locked, b.reason, b.by, b.started_by, b.created, b.started_at, b.moved_at, b.finished_at FROM public._jobs_bulk b
WHERE ($1::uuid[] IS NULL OR b.id = ANY ($1::uuid[])) AND b.id < $2::uuid
ORDER BY b.id DESC
LIMIT $3::int;

-- ════ cancel_timeout_due ════

-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
    WHERE j.status = 'cancel_requested' AND j.cancel_requested_at < (SELECT clock_timestamp()) - coalesce((SELECT (r.data->'template'->'cancel'->>'grace')::float8 FROM public._jobs_records r WHERE r.kind = 'template' AND r.id = j.topic || '@' || j.template_version AND json_typeof(r.data->'template'->'cancel'->'grace') = 'number'), $2::float8) * interval '1 second' AND (j.step IS NULL OR (j.locked_until >= (SELECT clock_timestamp()) AND EXISTS (SELECT FROM public._jobs_steps s WHERE s.job_id >= j.id AND s.job_id <= j.id AND s.state = 'running' AND NOT s.cancelable AND s.version = j.version)) IS NOT TRUE)
    ORDER BY j.cancel_requested_at
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, held.* FROM held;

-- ════ checkpoint ════

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
        FROM public._jobs j WHERE j.id = asked.id FOR NO KEY UPDATE
    ) h
),
ok AS MATERIALIZED (
    SELECT *, clock_timestamp() AS now FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
marked AS (
    UPDATE public._jobs j SET step = ok.step, progress = coalesce(ok.percent, j.progress), updated = ok.now
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
),
stored AS (
    INSERT INTO public._jobs_steps AS s (
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
FROM held LEFT JOIN marked ON marked.id = held.id;

-- ════ claim ════

WITH
-- How many dead index entries this session has read so far. claim_bounds.py uses what the claim adds to it.
meter AS MATERIALIZED (SELECT (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) AS claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due),
-- Lanes that may be claimed now. They come as two texts, because 500 of them take a millisecond to send as arrays.
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(
        string_to_array($1::text, ' '), string_to_array($2::text, ' ')::int[]
    ) WITH ORDINALITY AS l (topic, template_version, n)
    WHERE  l.topic <> ALL (ARRAY(
        SELECT topic FROM public._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
        UNION ALL SELECT topic FROM public._jobs_topics WHERE limited))
      -- After this time the worker no longer waits for the answer: see clock.py.
      AND (SELECT clock_timestamp()) <= coalesce($13::timestamptz, 'infinity')
),
-- The parts of every lane that are read: the whole lane, or what claim_bounds.py has not ruled out.
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest(
        $3::int[], $4::timestamptz[], $5::uuid[],
        $6::int[], $7::timestamptz[]
    ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
-- The first jobs of all lanes together, read without locks.
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $9::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $9::int
),
-- How many jobs to take from each lane: strict priority across lanes. For a single lane `top` is not read.
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality($3::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, $9::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
-- MATERIALIZED, because a SKIP LOCKED that the planner inlines into the UPDATE may take more than its LIMIT. The size is
-- the stored one, often compressed: reading it costs nothing.
locked AS MATERIALIZED (
    SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
        FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
-- The first of these jobs that are not too large together, but at least one.
small AS MATERIALIZED (
    SELECT coalesce(sum(size), 0) <= coalesce($14::bigint, 9223372036854775807) AS yes FROM locked
),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < $14::bigint
),
-- Read when the first row is written, after all waiting.
claim_clock AS MATERIALIZED (
    SELECT now, now + $11::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
-- A waiting job that is cancelled runs once more, to undo what it has done: it stays cancel_requested.
claimed AS (
    UPDATE public._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = $10::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $12::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic, j.template_version, j.payload, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.cancel_requested_at, j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped
),
claim_summary AS (
    -- `seen` is one array, because each column of this row also costs a column of every claimed job. OFFSET 0 lets the
    -- meter be read last.
    SELECT ARRAY[(contended)::int, (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) - meter.claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due,
                 (EXISTS (SELECT FROM public._jobs_ends))::int,
                 (EXISTS (SELECT FROM public._jobs_topics
                          WHERE limited AND topic = ANY (string_to_array($1::text, ' '))))::int] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < $9::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM public._jobs
                WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < timestamptz '9999-12-31 23:59:59.999999+00'
                  AND run_at > coalesce($8::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
SELECT seen, next_due, now, until, applied, NULL::uuid, NULL::text, NULL::int, NULL::json, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::float8, NULL::json, NULL::text, NULL::int, NULL::int, NULL::int, NULL::float8, NULL::int, NULL::timestamptz, NULL::text, NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::timestamptz, NULL::int FROM (SELECT *, NULL::uuid[] AS applied FROM claim_summary) summary
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j;

-- ════ complete ════

WITH
-- settle.sql for the most common batch: completed runs of one version and one worker (NULL: any, but one has it). It costs two
-- thirds of settle (docs/decisions/0004), because the DELETE has the guard itself: it waits for a row's lock, then checks
-- the row again.
gone AS (
    DELETE FROM public._jobs
    WHERE id = ANY ($1::uuid[]) AND version = $2::int
      AND locked_by = coalesce($5::text, locked_by)
      AND (status = 'processing' OR status = 'cancel_requested') AND line IS NULL
    RETURNING *
),
held AS (SELECT 1 FROM gone),
done AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $3::text[], $4::float8[]) AS d (id, outcome, ran)
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
counted AS (
    INSERT INTO public._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
           coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
    FROM archived GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
)
SELECT applied, false AS ended, false AS woken FROM settle_summary;

-- ════ complete_and_claim ════

WITH
-- settle.sql for the most common batch: completed runs of one version and one worker (NULL: any, but one has it). It costs two
-- thirds of settle (docs/decisions/0004), because the DELETE has the guard itself: it waits for a row's lock, then checks
-- the row again.
gone AS (
    DELETE FROM public._jobs
    WHERE id = ANY ($1::uuid[]) AND version = $2::int
      AND locked_by = coalesce($5::text, locked_by)
      AND (status = 'processing' OR status = 'cancel_requested') AND line IS NULL
    RETURNING *
),
held AS (SELECT 1 FROM gone),
done AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $3::text[], $4::float8[]) AS d (id, outcome, ran)
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
counted AS (
    INSERT INTO public._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
           coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
    FROM archived GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
),
-- How many dead index entries this session has read so far. claim_bounds.py uses what the claim adds to it.
meter AS MATERIALIZED (SELECT (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) AS claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due),
-- Lanes that may be claimed now. They come as two texts, because 500 of them take a millisecond to send as arrays.
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(
        string_to_array($6::text, ' '), string_to_array($7::text, ' ')::int[]
    ) WITH ORDINALITY AS l (topic, template_version, n)
    WHERE (SELECT count(*) FROM held) >= 0 AND l.topic <> ALL (ARRAY(
        SELECT topic FROM public._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
        UNION ALL SELECT topic FROM public._jobs_topics WHERE limited))
      -- After this time the worker no longer waits for the answer: see clock.py.
      AND (SELECT clock_timestamp()) <= coalesce($18::timestamptz, 'infinity')
),
-- The parts of every lane that are read: the whole lane, or what claim_bounds.py has not ruled out.
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest(
        $8::int[], $9::timestamptz[], $10::uuid[],
        $11::int[], $12::timestamptz[]
    ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
-- The first jobs of all lanes together, read without locks.
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $14::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $14::int
),
-- How many jobs to take from each lane: strict priority across lanes. For a single lane `top` is not read.
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality($8::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, $14::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
-- MATERIALIZED, because a SKIP LOCKED that the planner inlines into the UPDATE may take more than its LIMIT. The size is
-- the stored one, often compressed: reading it costs nothing.
locked AS MATERIALIZED (
    SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
        FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
-- The first of these jobs that are not too large together, but at least one.
small AS MATERIALIZED (
    SELECT coalesce(sum(size), 0) <= coalesce($19::bigint, 9223372036854775807) AS yes FROM locked
),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < $19::bigint
),
-- Read when the first row is written, after all waiting.
claim_clock AS MATERIALIZED (
    SELECT now, now + $16::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
-- A waiting job that is cancelled runs once more, to undo what it has done: it stays cancel_requested.
claimed AS (
    UPDATE public._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = $15::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $17::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic, j.template_version, j.payload, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.cancel_requested_at, j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped
),
claim_summary AS (
    -- `seen` is one array, because each column of this row also costs a column of every claimed job. OFFSET 0 lets the
    -- meter be read last.
    SELECT ARRAY[(contended)::int, (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) - meter.claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due,
                 (EXISTS (SELECT FROM public._jobs_ends))::int,
                 (EXISTS (SELECT FROM public._jobs_topics
                          WHERE limited AND topic = ANY (string_to_array($6::text, ' '))))::int] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < $14::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM public._jobs
                WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < timestamptz '9999-12-31 23:59:59.999999+00'
                  AND run_at > coalesce($13::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
SELECT seen, next_due, now, until, applied, NULL::uuid, NULL::text, NULL::int, NULL::json, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::float8, NULL::json, NULL::text, NULL::int, NULL::int, NULL::int, NULL::float8, NULL::int, NULL::timestamptz, NULL::text, NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::timestamptz, NULL::int FROM settle_summary CROSS JOIN claim_summary
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j;

-- ════ count_ready ════

SELECT (SELECT count(*) FROM (SELECT FROM public._jobs j
                              WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
                              LIMIT $3::int) r)
FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS l (topic, template_version, n)
ORDER BY l.n;

-- ════ debounce_lock_on_conn ════

-- Locks the jobs of these lines that no worker has claimed, in the order of ids as every verb does it. They are found without
-- locks first; a job that was claimed meanwhile is left out. The parameter is [line, …]. Answers [[time, row], …].
WITH s AS MATERIALIZED (
    SELECT j.id FROM json_array_elements_text($1::text::json) AS l (line) CROSS JOIN LATERAL (
        SELECT j.id FROM public._jobs j
        WHERE j.line = l.line AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
    ) j
    ORDER BY j.id
),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
        WHERE j.id = s.id AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
        FOR NO KEY UPDATE
    ) h
)
SELECT coalesce(json_agg(json_build_array(public._jobs_us(clock_timestamp()), row_to_json(held))), '[]')::text FROM held;

-- ════ debounce_write_on_conn ════

-- Writes what newer enqueues have made of jobs that this transaction has locked. The parameter has a patch of
-- core.moves.Debounced for each. Without a run_at, the time stays.
WITH p AS MATERIALIZED (
    SELECT * FROM json_to_recordset($1::text::json) AS p (
        place text, payload json, priority int, template_version int, max_retries int, timeout float8, trace text, share text,
        expires_at bigint, tags jsonb, run_at bigint, ready bool, updated bigint, entry jsonb)
),
moved AS (
    UPDATE public._jobs j SET
        payload = p.payload, priority = p.priority, template_version = p.template_version, max_retries = p.max_retries,
        timeout = p.timeout, trace = p.trace, share = p.share, expires_at = public._jobs_time(p.expires_at), tags = p.tags,
        run_at = coalesce(public._jobs_time(p.run_at), j.run_at), ready = coalesce(p.ready, j.ready),
        updated = public._jobs_time(p.updated),
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, p.entry)
    FROM p
    WHERE j.ctid = p.place::tid
    RETURNING 1
)
SELECT count(*)::text FROM moved;

-- ════ debounced ════

-- The jobs of these lines whose payload a newer enqueue replaces.
SELECT j.line, j.id FROM public._jobs j
WHERE j.line = ANY ($1::text[]) AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked');

-- ════ drop_all_steps ════

-- Of a job that is gone. An id may have been used twice, and the other job is still there.
DELETE FROM public._jobs_steps
WHERE job_id = $1::uuid AND NOT EXISTS (SELECT FROM public._jobs j WHERE j.id = $1::uuid);

-- ════ drop_flow ════

-- Removes a flow that has no job any more.
WITH gone AS (
    DELETE FROM public._jobs_flows f
    WHERE f.id = $1::uuid AND NOT EXISTS (SELECT FROM public._jobs j WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL)
      AND NOT EXISTS (SELECT FROM public._jobs_archive a WHERE a.flow_id = f.id AND a.flow_id IS NOT NULL)
    RETURNING f.id
)
DELETE FROM public._jobs_edges WHERE flow_id = ANY (ARRAY(SELECT id FROM gone));

-- ════ drop_signals ════

-- Of jobs that are gone. An id may have been used twice, and the other job is still there.
DELETE FROM public._jobs_signals s
WHERE s.job_id = ANY ($1::uuid[]) AND NOT EXISTS (SELECT FROM public._jobs j WHERE j.id = s.job_id);

-- ════ drop_steps ════

-- With the signals that these waits have read: their ids are free again.
WITH dropped AS MATERIALIZED (SELECT * FROM unnest($2::text[], $3::int[]) AS d (name, n)),
signals AS (
    DELETE FROM public._jobs_signals WHERE job_id = $1::uuid AND (wait, wait_n) IN (SELECT name, n FROM dropped)
)
DELETE FROM public._jobs_steps WHERE job_id = $1::uuid AND (name, n) IN (SELECT name, n FROM dropped);

-- ════ end_counts ════

-- What there is, up to a bound, and what was counted, in one snapshot. What was pruned or deleted stays counted.
WITH counted AS (
    SELECT sum(completed) AS completed, sum(failed) AS failed, sum(expired) AS expired, sum(cancelled) AS cancelled
    FROM (SELECT completed, failed, expired, cancelled FROM public._jobs_totals WHERE topic = ''
          UNION ALL SELECT completed, failed, expired, cancelled FROM public._jobs_counts) c
),
dead AS (
    SELECT s.status, (SELECT count(*) FROM (
        SELECT 1 FROM public._jobs j WHERE j.finished_at IS NOT NULL AND j.status = s.status LIMIT $1::int) d) AS n
    FROM unnest(ARRAY['failed', 'expired', 'cancelled']) AS s (status)
)
SELECT 'completed', (SELECT count(*) FROM (SELECT 1 FROM public._jobs_archive LIMIT $1::int) a),
       coalesce(c.completed, 0)::bigint FROM counted c
UNION ALL
SELECT d.status, d.n, coalesce(CASE d.status WHEN 'failed' THEN c.failed WHEN 'expired' THEN c.expired
                                             ELSE c.cancelled END, 0)::bigint
FROM dead d CROSS JOIN counted c;

-- ════ ended_steps ════

-- For events: without results. Only a job whose `step` says so has any. By a range: see read.sql.
SELECT s.job_id, s.name, s.n, s.position, s.function, s.state, NULL AS result, s.error, s.retries, s.cancelable, s.version,
       s.started_at, s.finished_at, s.deadline
FROM public._jobs_steps s
WHERE s.job_id >= $1::uuid AND s.job_id <= $1::uuid AND s.state IN ('succeeded', 'failed') AND (
    SELECT step FROM public._jobs_all WHERE id >= $1::uuid AND id <= $1::uuid ORDER BY id LIMIT 1) IS NOT NULL;

-- ════ events ════

-- What the view _jobs_events answers for one job; a test compares them. The job is read once, by a range: see read.sql.
-- Through the view each of its five parts would look for the job, and none of them by that range.
WITH j AS MATERIALIZED (
    SELECT * FROM public._jobs_all WHERE id >= $1::uuid AND id <= $1::uuid ORDER BY id LIMIT 2
),
past AS MATERIALIZED (
    SELECT j.id, j.history_dropped, e, n, (e->>'version')::int AS version, (
               SELECT count(*)::int FROM jsonb_array_elements(j.history) o WHERE (o->>'version')::int < (e->>'version')::int
           ) AS before
    FROM j CROSS JOIN jsonb_array_elements(j.history) WITH ORDINALITY AS h (e, n)
)
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL AND (flow_id IS NULL OR NOT EXISTS (
           SELECT FROM public._jobs_edges e WHERE e.child = j.id AND e.call IS NULL))
            THEN 'pending' ELSE 'blocked' END AS status, 0 AS version, NULL::text AS by, '{}'::jsonb AS data
FROM j
UNION ALL  -- claims of runs that ended without completing
SELECT id, version + history_dropped + before, public._jobs_time((e->>'claimed_at')::bigint), 'claimed', 'processing',
       version, coalesce(e->>'worker', e->>'by'), jsonb_strip_nulls(jsonb_build_object('started_at', e->'started_at'))
FROM past WHERE e ? 'claimed_at'
UNION ALL  -- the claim of the run that is open, or that completed
SELECT id, version + history_dropped + (
           SELECT count(*)::int FROM jsonb_array_elements(history) o WHERE (o->>'version')::int < j.version),
       claimed_at, 'claimed', 'processing', version, locked_by,
       jsonb_strip_nulls(jsonb_build_object('started_at', public._jobs_us(started_at)))
FROM j WHERE status IN ('processing', 'completed') OR status = 'cancel_requested' AND locked_until IS NOT NULL
UNION ALL
SELECT id, (n + history_dropped)::int + version, public._jobs_time((e->>'at')::bigint), e->>'event', e->>'status',
       version, e->>'by', e - '{at,event,status,version,by}'::text[]
FROM past
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'::jsonb
FROM j WHERE status = 'completed'
ORDER BY seq;

-- ════ existing ════

-- The job that answers instead of a new one: any with this id, else the live one with this key.
SELECT s.n, coalesce(i.id, k.id) AS id, coalesce(i.status, k.status) AS status,
       coalesce(i.run_at, k.run_at) AS run_at, coalesce(i.created, k.created) AS created
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS s (id, topic, scope, scope_id, key, n)
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM public._jobs_all j
    WHERE j.id >= s.id AND j.id <= s.id ORDER BY j.id LIMIT 1  -- by a range: see read.sql
) i ON true
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM public._jobs j
    WHERE j.topic = s.topic AND j.key = s.key AND j.key IS NOT NULL AND j.line_seq IS NULL
      AND public._jobs_short(j.scope) = public._jobs_short(s.scope)
      AND public._jobs_short(j.scope_id) = public._jobs_short(s.scope_id)
      AND j.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')
    LIMIT 1
) k ON i.id IS NULL
WHERE coalesce(i.id, k.id) IS NOT NULL;

-- ════ existing_on_conn ════

SELECT coalesce(json_agg(json_build_array(
    n, id, status, public._jobs_us(run_at), public._jobs_us(created))), '[]')::text
FROM (
-- The job that answers instead of a new one: any with this id, else the live one with this key.
SELECT s.n, coalesce(i.id, k.id) AS id, coalesce(i.status, k.status) AS status,
       coalesce(i.run_at, k.run_at) AS run_at, coalesce(i.created, k.created) AS created
FROM json_to_recordset($1::text::json) AS s (id uuid, n int, topic text, scope text, scope_id text, key text)
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM public._jobs_all j
    WHERE j.id >= s.id AND j.id <= s.id ORDER BY j.id LIMIT 1  -- by a range: see read.sql
) i ON true
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM public._jobs j
    WHERE j.topic = s.topic AND j.key = s.key AND j.key IS NOT NULL AND j.line_seq IS NULL
      AND public._jobs_short(j.scope) = public._jobs_short(s.scope)
      AND public._jobs_short(j.scope_id) = public._jobs_short(s.scope_id)
      AND j.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')
    LIMIT 1
) k ON i.id IS NULL
WHERE coalesce(i.id, k.id) IS NOT NULL
) e;

-- ════ expire_due ════

-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
    WHERE j.status = 'pending' AND j.expires_at IS NOT NULL AND j.expires_at <= (SELECT clock_timestamp())
    ORDER BY j.expires_at
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, held.* FROM held;

-- ════ failures ════

-- $1: how many dead letters are read. $3: topics, or NULL. $4: how many groups. $5, $6: the seconds of a part of the trend,
-- and how many parts it has; older dead letters are one part more. $8 to $10: the group after which to begin, or NULL. The
-- answer has a row per group, but at least one, because each row ends with the numbers of all groups.
WITH every AS MATERIALIZED (
    SELECT fingerprint, part, min(topic) AS topic, count(*)::int AS n, min(finished_at) AS first, max(finished_at) AS last
    FROM (
        SELECT seen.*, least(greatest(floor(extract(epoch FROM (SELECT clock_timestamp()) - finished_at)
                                            / $5::float8), 0), $6::int)::int AS part
        FROM (SELECT j.finished_at, j.fingerprint, j.topic, j.id FROM public._jobs j
    WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at >= $2::timestamptz
      AND $7::text IS NULL
      AND ($3::text[] IS NULL OR j.topic = ANY ($3::text[]))
    ORDER BY j.finished_at DESC
    LIMIT $1::int) seen
    ) s
    GROUP BY fingerprint, part
),
-- If one fingerprint was asked for, its topic is compared here: failures_of_one.sql does not read it.
counted AS (SELECT * FROM every WHERE $3::text[] IS NULL OR topic = ANY ($3::text[])),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, sum(n)::int AS n, min(first) AS first, max(last) AS last,
           array_agg(part) AS parts, array_agg(n) AS counts
    FROM counted
    GROUP BY fingerprint
    HAVING $8::int IS NULL OR sum(n) < $8::int OR (sum(n) = $8::int AND (
        max(last) < $9::timestamptz OR (max(last) = $9::timestamptz AND fingerprint > $10::text)))
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT $4::int
)
SELECT g.fingerprint, g.topic, g.n, least(g.first, f.at) AS first, g.last, newest.id::text AS sample, newest.error, g.parts, g.counts,
       (SELECT coalesce(sum(n), 0)::int FROM counted) AS looked_at,
       (SELECT count(*)::int FROM (
            SELECT 1 FROM public._jobs u WHERE u.fingerprint IS NULL AND u.status IN ('failed', 'expired')
              AND ($3::text[] IS NULL OR u.topic = ANY ($3::text[]))
            LIMIT $1::int) u) AS ungrouped
FROM (SELECT) AS always
LEFT JOIN grouped g ON true
LEFT JOIN public._jobs_first_failures f ON f.fingerprint = g.fingerprint
LEFT JOIN LATERAL (
    SELECT j.id, CASE WHEN length(j.last_error) > 65550 THEN left(j.last_error, 32768) || '
… left out …
' || right(j.last_error, 32768) ELSE j.last_error END AS error FROM public._jobs j
    WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at = g.last
      AND j.fingerprint = g.fingerprint
    ORDER BY j.id DESC
    LIMIT 1
) newest ON true
ORDER BY g.n DESC, g.last DESC, g.fingerprint;

-- ════ failures_of_one ════

-- $1: how many dead letters are read. $3: topics, or NULL. $4: how many groups. $5, $6: the seconds of a part of the trend,
-- and how many parts it has; older dead letters are one part more. $8 to $10: the group after which to begin, or NULL. The
-- answer has a row per group, but at least one, because each row ends with the numbers of all groups.
WITH every AS MATERIALIZED (
    SELECT fingerprint, part, min(topic) AS topic, count(*)::int AS n, min(finished_at) AS first, max(finished_at) AS last
    FROM (
        SELECT seen.*, least(greatest(floor(extract(epoch FROM (SELECT clock_timestamp()) - finished_at)
                                            / $5::float8), 0), $6::int)::int AS part
        FROM (SELECT j.finished_at, j.fingerprint, j.topic, j.id FROM public._jobs j
    WHERE j.fingerprint = $7::text AND j.finished_at IS NOT NULL AND j.finished_at >= $2::timestamptz
    ORDER BY j.id DESC
    LIMIT $1::int) seen
    ) s
    GROUP BY fingerprint, part
),
-- If one fingerprint was asked for, its topic is compared here: failures_of_one.sql does not read it.
counted AS (SELECT * FROM every WHERE $3::text[] IS NULL OR topic = ANY ($3::text[])),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, sum(n)::int AS n, min(first) AS first, max(last) AS last,
           array_agg(part) AS parts, array_agg(n) AS counts
    FROM counted
    GROUP BY fingerprint
    HAVING $8::int IS NULL OR sum(n) < $8::int OR (sum(n) = $8::int AND (
        max(last) < $9::timestamptz OR (max(last) = $9::timestamptz AND fingerprint > $10::text)))
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT $4::int
)
SELECT g.fingerprint, g.topic, g.n, least(g.first, f.at) AS first, g.last, newest.id::text AS sample, newest.error, g.parts, g.counts,
       (SELECT coalesce(sum(n), 0)::int FROM counted) AS looked_at,
       (SELECT count(*)::int FROM (
            SELECT 1 FROM public._jobs u WHERE u.fingerprint IS NULL AND u.status IN ('failed', 'expired')
              AND ($3::text[] IS NULL OR u.topic = ANY ($3::text[]))
            LIMIT $1::int) u) AS ungrouped
FROM (SELECT) AS always
LEFT JOIN grouped g ON true
LEFT JOIN public._jobs_first_failures f ON f.fingerprint = g.fingerprint
LEFT JOIN LATERAL (
    SELECT j.id, CASE WHEN length(j.last_error) > 65550 THEN left(j.last_error, 32768) || '
… left out …
' || right(j.last_error, 32768) ELSE j.last_error END AS error FROM public._jobs j
    WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at = g.last
      AND j.fingerprint = g.fingerprint
    ORDER BY j.id DESC
    LIMIT 1
) newest ON true
ORDER BY g.n DESC, g.last DESC, g.fingerprint;

-- ════ fence ════

-- Lock the run's row until the transaction ends, so that no rescue, settle or cancel can end the run meanwhile. If one
-- of them has the lock, this waits for its commit and reads the new row (READ COMMITTED). Status, version and worker are
-- checked outside: here they would let the planner choose a partial index. A waiting job that is being cancelled has no
-- worker, so no run holds it.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_record($1::text::json) AS asked (id uuid, version int, worker text)
),
found AS MATERIALIZED (
    SELECT j.status, j.version, j.locked_by
    FROM public._jobs j WHERE j.id = (SELECT id FROM asked) FOR NO KEY UPDATE
)
SELECT CASE WHEN EXISTS (
    SELECT FROM found JOIN asked USING (version)
    WHERE found.locked_by = coalesce(asked.worker, found.locked_by)
      AND found.status IN ('processing', 'cancel_requested')
) THEN 'held' ELSE 'lost' END;

-- ════ fires ════

-- The newest fires of each schedule, below a time.
SELECT s.id, f.fire_at, f.at, f.kind, f.job_id, f.reason, f.detail
FROM unnest($1::uuid[]) AS s (id) CROSS JOIN LATERAL (
    SELECT * FROM public._jobs_fires f
    WHERE f.schedule_id = s.id AND ($2::timestamptz IS NULL OR f.fire_at < $2)
    ORDER BY f.fire_at DESC LIMIT $3::int) f;

-- ════ flow_awaited ════

-- Which of these jobs ($2) have children that still wait for their end, or are held because of it. $1: their lines.
SELECT DISTINCT e.parent::text FROM public._jobs_edges e
WHERE e.line = ANY ($1::text[]) AND e.parent = ANY ($2::uuid[]) AND (e.ended IS NULL OR (e.verdict = 'hold' AND EXISTS (
    SELECT FROM public._jobs c WHERE c.id = e.child AND c.status = 'blocked')));

-- ════ flow_children ════

-- The edges in these lines ($1) that don't say how their parents stand: $2 and $3, NULL: the parent is live. At most $4. An edge
-- from a parent that is gone keeps its end. CASE keeps each `IN` a mere filter, which looks into a hash table: a join would
-- compare each edge with each parent. The last column: no other edge leads to the child.
WITH p AS MATERIALIZED (SELECT p.id, p.ended FROM unnest($2::uuid[], $3::text[]) AS p (id, ended))
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error,
       NOT EXISTS (SELECT FROM public._jobs_edges o WHERE o.child = e.child AND o.parent <> e.parent)
FROM public._jobs_edges e
WHERE e.line = ANY ($1::text[])
  AND CASE WHEN e.ended IS NULL THEN e.parent IN (SELECT id FROM p WHERE ended IS NOT NULL)
           ELSE e.parent IN (SELECT id FROM p WHERE ended IS DISTINCT FROM 'deleted')
                AND (e.parent, e.ended) NOT IN (SELECT id, ended FROM p WHERE ended IS NOT NULL) END
ORDER BY e.child, e.parent LIMIT $4::int;

-- ════ flow_count_edges ════

-- How many edges lead to these jobs, by call, and how many of them are open.
SELECT e.child::text, e.call, count(*)::int, count(*) FILTER (WHERE e.ended IS NULL)::int
FROM unnest($1::uuid[]) AS s (id) JOIN public._jobs_edges e ON e.child = s.id GROUP BY 1, 2;

-- ════ flow_drop_children ════

DELETE FROM public._jobs_edges WHERE child = ANY ($1::uuid[]) AND call IS NOT NULL;

-- ════ flow_drop_edges ════

DELETE FROM public._jobs_edges WHERE child = ANY ($1::uuid[]);

-- ════ flow_edges ════

-- All edges that lead to these jobs.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error
FROM unnest($1::uuid[]) AS s (id) JOIN public._jobs_edges e ON e.child = s.id
ORDER BY e.child, e.call, e.place, e.parent;

-- ════ flow_edges_between ════

-- The edges with these children ($1) and parents ($2): by the primary key, whatever else leads to the children.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, e.result::text, e.error
FROM unnest($1::uuid[], $2::uuid[]) AS s (child, parent)
JOIN public._jobs_edges e ON e.child = s.child AND e.parent = s.parent
ORDER BY e.child, e.call, e.place, e.parent;

-- ════ flow_edges_of_flow ════

-- All edges of a flow, without what is stored of results.
SELECT e.child::text, e.parent::text, e.flow_id::text, e.name, e.line, e.if_failed, e.condition, e.fills, e.call, e.place, e.owner, e.ended, e.verdict, NULL::text, NULL::text
FROM public._jobs_edges e WHERE e.flow_id = $1::uuid ORDER BY e.child, e.call, e.place, e.parent;

-- ════ flow_forgive ════

-- A person wants these jobs to run: parents that have ended don't keep them from it.
UPDATE public._jobs_edges SET verdict = 'pass' WHERE child = ANY ($1::uuid[]) AND call IS NULL AND ended IS NOT NULL;

-- ════ flow_held ════

SELECT DISTINCT e.child::text FROM public._jobs_edges e
WHERE e.child = ANY ($1::uuid[]) AND e.verdict = 'hold'
  AND NOT EXISTS (SELECT FROM public._jobs_edges o WHERE o.child = e.child AND o.call IS NULL AND o.ended IS NULL);

-- ════ flow_insert_on_conn ════

-- Writes a flow and its edges, given as {flow: …, edges: […], lines: […]}. A repeat changes nothing. `lines`: of parents that
-- have ended already: `advance` looks at them.
WITH given AS MATERIALIZED (SELECT $1::text::json AS g),
made AS (
    INSERT INTO public._jobs_flows AS f (id, name, by, jobs, nodes, created, looked)
    SELECT (g->'flow'->>'id')::uuid, g->'flow'->>'name', g->'flow'->>'by', (g->'flow'->>'jobs')::int, g->'flow'->'nodes',
           clock_timestamp(), clock_timestamp()
    FROM given
    ON CONFLICT (id) DO UPDATE SET jobs = f.jobs + (SELECT (g->'flow'->>'more')::int FROM given)
    WHERE (SELECT (g->'flow'->>'more')::int FROM given) > 0
    RETURNING 1
),
edged AS (
    INSERT INTO public._jobs_edges (child, parent, flow_id, name, line, if_failed, condition, fills, call, place, owner)
    SELECT s.child, s.parent, s.flow_id, s.name, s.line, s.if_failed, s.condition, s.fills, s.call, s.place, s.owner
    FROM given, json_to_recordset(g->'edges') AS s (
        child uuid, parent uuid, flow_id uuid, name text, line text, if_failed text, condition text, fills bool,
        call int, place int, owner text)
    ON CONFLICT DO NOTHING RETURNING 1
),
noted AS (
    INSERT INTO public._jobs_ends (line) SELECT value FROM given, json_array_elements_text(g->'lines') RETURNING 1
)
SELECT ((SELECT count(*) FROM made) + (SELECT count(*) FROM edged) + (SELECT count(*) FROM noted))::text;

-- ════ flow_jobs ════

-- The ids of all jobs of a flow that are there, with their statuses.
SELECT j.id::text, j.status FROM public._jobs j WHERE j.flow_id = $1::uuid AND j.flow_id IS NOT NULL
UNION ALL
SELECT a.id::text, 'completed' FROM public._jobs_archive a WHERE a.flow_id = $1::uuid AND a.flow_id IS NOT NULL;

-- ════ flow_nodes ════

SELECT nodes::text FROM public._jobs_flows WHERE id = $1::uuid;

-- ════ flow_outside_on_conn ════

-- Locks jobs that a new flow waits for, in the order of ids, and lets their ends be noted. Answers [[id, status, line], …]; of
-- jobs in the archive, the status is completed.
WITH s AS MATERIALIZED (SELECT value::uuid AS id FROM json_array_elements_text($1::text::json) ORDER BY 1),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status, j.line FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
noted AS (
    UPDATE public._jobs j SET line = replace(j.id::text, '-', '') || ':job'
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM held WHERE line IS NULL)) RETURNING j.id
),
old AS MATERIALIZED (
    SELECT a.id FROM s CROSS JOIN LATERAL (
        SELECT a.id FROM public._jobs_archive a WHERE a.id >= s.id AND a.id <= s.id ORDER BY a.id LIMIT 1
    ) a WHERE s.id NOT IN (SELECT id FROM held)
)
SELECT coalesce(json_agg(json_build_array(id, status, coalesce(line, replace(id::text, '-', '') || ':job'))), '[]')::text
FROM (SELECT id, status, line FROM held UNION ALL SELECT id, 'completed', NULL FROM old) found
WHERE (SELECT count(*) FROM noted) >= 0;

-- ════ flow_own ════

-- The run must hold its job. Its job is the owner of children from now on: it belongs to the flow, and its end is noted. Nothing
-- is written if the job is being cancelled.
WITH held AS MATERIALIZED (
    SELECT j.ctid AS tid, j.status, j.version, j.locked_by FROM public._jobs j WHERE j.id = $1::uuid FOR NO KEY UPDATE
),
run AS MATERIALIZED (
    SELECT tid, status FROM held
    WHERE version = $2::int AND locked_by = coalesce($3::text, locked_by) AND status IN ('processing', 'cancel_requested')
),
owned AS (
    UPDATE public._jobs j SET flow_id = coalesce(j.flow_id, $4::uuid),
           line = coalesce(j.line, replace(j.id::text, '-', '') || ':job')
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM run WHERE status = 'processing')) RETURNING j.line
)
SELECT (SELECT line FROM owned), status FROM run;

-- ════ flow_parents ════

-- How jobs stand: those of $2, and those that stand in the lines of $1 and that others wait for. By ranges in the archive: see
-- read.sql. A job that is in neither table is gone. The last column: no true condition has led to it.
WITH noted AS MATERIALIZED (
    SELECT DISTINCT e.parent AS id FROM public._jobs_edges e WHERE e.line = ANY ($1::text[])
    UNION SELECT id FROM unnest($2::uuid[]) AS s (id)
)
SELECT n.id::text, coalesce(j.status, a.status), coalesce(j.result, a.result), coalesce(j.error, a.error),
       j.status = 'cancelled' AND EXISTS (
           SELECT FROM public._jobs_edges e WHERE e.child = n.id AND e.verdict = 'untaken') IS TRUE
FROM noted n
LEFT JOIN LATERAL (
    SELECT j.status, NULL::text AS result, left(j.last_error, 10000) AS error FROM public._jobs j WHERE j.id = n.id
) j ON true
LEFT JOIN LATERAL (
    SELECT 'completed' AS status, a.result::text AS result, NULL::text AS error FROM public._jobs_archive a
    WHERE a.id >= n.id AND a.id <= n.id ORDER BY a.id LIMIT 1
) a ON j.status IS NULL;

-- ════ flow_payloads ════

-- The payloads of jobs that this transaction has locked.
SELECT j.id::text, j.payload::text FROM unnest($1::uuid[]) AS s (id) JOIN public._jobs j ON j.id = s.id;

-- ════ flow_started ════

-- The jobs that stand in these lines and have started others, and those others.
SELECT e.child::text, e.parent::text FROM public._jobs_edges e
WHERE e.owner = ANY ($1::text[]) AND e.owner IS NOT NULL AND e.call IS NOT NULL ORDER BY e.child, e.place;

-- ════ flow_waited ════

-- Which of these jobs have waited for others.
SELECT DISTINCT e.child::text FROM public._jobs_edges e WHERE e.child = ANY ($1::uuid[]) AND e.call IS NULL;

-- ════ flow_watched ════

SELECT DISTINCT e.line FROM public._jobs_edges e WHERE e.line = ANY ($1::text[]);

-- ════ flow_write_edges ════

-- Writes what has changed of edges. Their children are locked. Equal changes come once:
-- [[children, parents, fills, ended, verdict, result, error], …], where ids stand in one text.
WITH c AS MATERIALIZED (
    SELECT c->>0 AS children, c->>1 AS parents, (c->>2)::bool AS fills, c->>3 AS ended, c->>4 AS verdict,
           (c->>5)::json AS result, c->>6 AS error
    FROM json_array_elements($1::text::json) AS c
)
UPDATE public._jobs_edges e
SET fills = c.fills, ended = c.ended, verdict = c.verdict, result = c.result, error = c.error
FROM c
CROSS JOIN LATERAL unnest(string_to_array(c.children, ' ')::uuid[], string_to_array(c.parents, ' ')::uuid[]) AS s (child, parent)
WHERE e.child = s.child AND e.parent = s.parent;

-- ════ flows ════

-- Flows, the newest first: $1 by id, NULL: all; $2: below this id; $3: at most so many; $4: of this name; NULL: any.
WITH f AS MATERIALIZED (
    SELECT id, name, by, jobs, created FROM public._jobs_flows
    WHERE ($1::uuid[] IS NULL OR id = ANY ($1::uuid[])) AND ($2::uuid IS NULL OR id < $2::uuid)
      AND ($4::text IS NULL OR name = $4::text)
    ORDER BY id DESC LIMIT $3::int
)
SELECT f.id::text, f.name, f.by, f.jobs, f.created, c.counts::text, c.untaken, c.held,
       CASE WHEN c.held = 0 THEN 0 ELSE (
           -- Between the end of its parent and its own start, a job is blocked, too. Only this tells it from one that waits.
           SELECT count(*)::int FROM public._jobs j
           WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL AND j.status = 'blocked'
             AND NOT EXISTS (SELECT FROM public._jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold')
             AND NOT EXISTS (
                 SELECT FROM public._jobs_edges e JOIN public._jobs p ON p.id = e.parent
                 WHERE e.child = j.id AND e.call IS NULL AND e.ended IS NULL AND p.status = 'blocked')
       ) END AS moving
FROM f CROSS JOIN LATERAL (
    SELECT coalesce(json_object_agg(s.status, s.n), '{}') AS counts, coalesce(sum(s.untaken), 0)::int AS untaken,
           coalesce(sum(s.held), 0)::int AS held
    FROM (
        SELECT j.status, count(*)::int AS n,
               count(*) FILTER (WHERE j.status = 'cancelled' AND EXISTS (
                   SELECT FROM public._jobs_edges e WHERE e.child = j.id AND e.verdict = 'untaken'))::int AS untaken,
               count(*) FILTER (WHERE j.status = 'blocked' AND EXISTS (
                   SELECT FROM public._jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold'))::int AS held
        FROM public._jobs j WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL GROUP BY j.status
        UNION ALL
        SELECT 'completed', count(*)::int, 0, 0 FROM public._jobs_archive a
        WHERE a.flow_id = f.id AND a.flow_id IS NOT NULL HAVING count(*) > 0
    ) s
) c
ORDER BY f.id DESC;

-- ════ fold_counts ════

-- Add at most $1 notes to the totals. rollups.py adds the answer to the rollups. A requeue's note is negative. If the
-- clock was set back, a run counts as 0 seconds, not less.
WITH taken AS MATERIALIZED (SELECT ctid AS tid FROM public._jobs_counts LIMIT $1::int FOR UPDATE SKIP LOCKED),
notes AS (
    DELETE FROM public._jobs_counts WHERE ctid = ANY (ARRAY(SELECT tid FROM taken)) RETURNING *
),
added AS (
    INSERT INTO public._jobs_totals AS t (
        topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
        requeued_expired, requeued_cancelled)
    SELECT coalesce(topic, ''), sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
           sum(greatest(execution_us, 0)), sum(retried), sum(lost), -sum(least(failed, 0)), -sum(least(expired, 0)),
           -sum(least(cancelled, 0))
    FROM notes WHERE enqueued = 0 AND deleted = 0 GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0
    ORDER BY 1
    ON CONFLICT (topic) DO UPDATE SET
        completed = t.completed + excluded.completed, failed = t.failed + excluded.failed,
        expired = t.expired + excluded.expired, cancelled = t.cancelled + excluded.cancelled,
        executions = t.executions + excluded.executions, execution_us = t.execution_us + excluded.execution_us,
        retried = t.retried + excluded.retried, lost = t.lost + excluded.lost,
        requeued_failed = t.requeued_failed + excluded.requeued_failed,
        requeued_expired = t.requeued_expired + excluded.requeued_expired,
        requeued_cancelled = t.requeued_cancelled + excluded.requeued_cancelled
),
-- The counts of each topic and minute in `notes`, and how many durations are in each bucket (core/sketch.py). A requeue's
-- negative note lowers the totals only: here it counts as requeued.
timed AS MATERIALIZED (SELECT *, floor(date_part('epoch', at) / 60)::bigint AS minute FROM notes),
counted AS (
    SELECT topic, minute,
           ARRAY[sum(enqueued), sum(completed), sum(greatest(failed, 0)), sum(greatest(expired, 0)),
                 sum(greatest(cancelled, 0)), sum(retried), sum(lost),
                 -sum(least(failed, 0) + least(expired, 0) + least(cancelled, 0)), sum(deleted)]::bigint[] AS counts
    FROM timed GROUP BY topic, minute
),
waited AS (
    SELECT topic, minute, array_agg(bucket) AS waits, array_agg(n) AS waits_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.waits) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
ran AS (
    SELECT topic, minute, array_agg(bucket) AS runs, array_agg(n) AS runs_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.runs) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
minutes AS (
    SELECT topic, minute, counts, waits, waits_n, runs, runs_n
    FROM counted LEFT JOIN waited USING (topic, minute) LEFT JOIN ran USING (topic, minute)
)
SELECT (SELECT count(*) FROM notes)::int, topic, minute * 60, counts, waits, waits_n, runs, runs_n FROM minutes;

-- ════ fold_lock ════

-- Take the lock of folding ($1) until the transaction ends. False: another process has it. NULL: there is nothing to fold.
SELECT CASE WHEN EXISTS (SELECT FROM public._jobs_counts)
            THEN pg_try_advisory_xact_lock($1::bigint) AND set_config('rowlock.folds', 'requeues', true) = 'requeues' END;

-- ════ group_failures ════

-- Only jobs that have not changed since their error was read. A job that failed again has another error and another end.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS s (id, at, known) ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.finished_at, j.fingerprint
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT * FROM held WHERE status IN ('failed', 'expired') AND finished_at = at AND fingerprint IS NULL
)
UPDATE public._jobs j SET fingerprint = ok.known
FROM ok
WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id;

-- ════ heartbeat ════

-- SKIP LOCKED: a heartbeat never waits. For a row that another transaction has locked, the store asks `standing`; the run
-- does not count as lost.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::bool[]) AS s (id, run, worker, started) ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT * FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
kept AS (
    UPDATE public._jobs j SET
        locked_until = greatest(j.locked_until, clock_timestamp() + $5::float8 * interval '1 second'),
        started_at = CASE WHEN ok.started THEN coalesce(j.started_at, clock_timestamp()) ELSE j.started_at END
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
)
-- A row that was changed since our snapshot is locked, but too new for the UPDATE.
SELECT held.id, held.status, held.version, held.locked_by, kept.id IS NOT NULL AS written
FROM held LEFT JOIN kept ON kept.id = held.id;

-- ════ held_by ════

-- Along the leases, which are few: what is running now, by all workers. A range that holds all of them, for a plan made
-- while the table was empty would rather scan it than follow IS NOT NULL.
SELECT id, version, started_at IS NOT NULL AS started, locked_by FROM public._jobs
WHERE locked_until > '-infinity' AND locked_by = ANY ($1::text[])
ORDER BY locked_until LIMIT $2::int;

-- ════ identity ════

-- The oids of the database and the table are part of it: they differ in a restored dump or a copied database.
SELECT m.value || '@' || d.oid || '.' || m.tableoid
FROM public._jobs_meta m CROSS JOIN pg_catalog.pg_database d
WHERE m.name = $1::text AND d.datname = current_database();

-- ════ insert ════

-- Insert many jobs. Jobs whose id or live key is taken are left out; the store asks `existing` for them. Batches with keys
-- are sorted by them, so that two batches can't deadlock. After $16 the client may have asked again, so nothing is
-- inserted: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($16::timestamptz, 'infinity') AS in_time,
           public._jobs_first_id(now - interval '1 hour') AS low,
           public._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
s AS (
    SELECT s.* FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::float8[], $7::timestamptz[], $8::text[],
        $9::text[], $10::text[], $11::int[], $12::int[], $13::float8[], $14::text[], $15::text[]
    ) WITH ORDINALITY AS s (id, topic, payload, priority, run_at, delay, expires_at, key,
                            scope, scope_id, template_version, max_retries, timeout, tags, trace, n)
),
ins AS (
    INSERT INTO public._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray)
    SELECT s.id, s.topic, s.payload::json, 'pending', s.priority,
           coalesce(s.run_at, now + s.delay * interval '1 second'),
           coalesce(s.run_at <= now, s.delay = 0),
           s.expires_at, s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout, s.tags::jsonb,
           s.trace, now, now, s.id < low OR s.id >= high
    FROM s, clock WHERE in_time
    
    ON CONFLICT DO NOTHING
    RETURNING id, topic
),
noted AS (
    INSERT INTO public._jobs_counts (at, topic, enqueued)
    SELECT (SELECT now FROM clock), topic, count(*) FROM ins GROUP BY topic
)
SELECT (SELECT now FROM clock) AS now,
       -- An insert may wait for another transaction's key. Once its rows are there, a repeat waits for this transaction.
       -- If they came after $16, the repeat may have been first: an error takes them back.
       CASE WHEN count(*) > 0 AND clock_timestamp() > $16::timestamptz
            THEN ('too late by ' || (clock_timestamp() - $16::timestamptz))::int
            ELSE count(*)::int END AS inserted,
       -- NULL if all are new
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids
FROM ins;

-- ════ insert_alike ════

-- Insert jobs that differ in id, topic and payload only; their other columns are sent once. Their ids are new, so there is
-- no ON CONFLICT, which would add a quarter to a row's cost: see insert_new in insert.py. The client has counted the jobs
-- of each topic ($13, $14), because counting here would add a tenth to a single job's cost. After $15 the client may have
-- asked again, so nothing is inserted: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($15::timestamptz, 'infinity') AS in_time, now + $5::float8 * interval '1 second' AS due,
           public._jobs_first_id(now - interval '1 hour') AS low,
           public._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
ins AS (
    INSERT INTO public._jobs (
        id, topic, payload, status, priority, run_at, ready, template_version, max_retries, timeout, created, updated,
        stray)
    SELECT s.id, s.topic, s.payload, 'pending', $4::int, due, $5::float8 = 0, $6::int, $7::int, $8::float8, now, now,
           s.id < low OR s.id >= high
    FROM unnest($1::uuid[], $2::text[], $3::json[]) AS s (id, topic, payload), clock WHERE in_time
    RETURNING 1
),
noted AS (
    INSERT INTO public._jobs_counts (at, topic, enqueued)
    SELECT now, topic, n FROM unnest($13::text[], $14::int[]) AS t (topic, n), clock WHERE in_time
)
SELECT now,
       -- Once the rows are there, a repeat waits for this transaction. If they came after $15, the repeat may have been
       -- first: an error takes them back.
       (SELECT CASE WHEN count(*) > 0 AND clock_timestamp() > $15::timestamptz
                    THEN ('too late by ' || (clock_timestamp() - $15::timestamptz))::bigint
                    ELSE count(*) END FROM ins) AS inserted,
       -- ring.sql in the same commit, if $9: a waiting worker gets the job a round trip and a flush sooner. False: no worker
       -- waits. One may wait by the time of the commit, so the store must ring after it. NULL: another transaction is
       -- ringing (see doorbell.py).
       CASE WHEN NOT $9::bool OR NOT in_time THEN false
            WHEN pg_try_advisory_lock($11::bigint) THEN NOT pg_advisory_unlock($11::bigint)
            WHEN pg_try_advisory_xact_lock($12::bigint) THEN (SELECT true FROM pg_notify($10::text, '')) END AS rang
FROM clock;

-- ════ insert_keyed ════

-- Insert many jobs. Jobs whose id or live key is taken are left out; the store asks `existing` for them. Batches with keys
-- are sorted by them, so that two batches can't deadlock. After $16 the client may have asked again, so nothing is
-- inserted: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($16::timestamptz, 'infinity') AS in_time,
           public._jobs_first_id(now - interval '1 hour') AS low,
           public._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
s AS (
    SELECT s.* FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::float8[], $7::timestamptz[], $8::text[],
        $9::text[], $10::text[], $11::int[], $12::int[], $13::float8[], $14::text[], $15::text[]
    ) WITH ORDINALITY AS s (id, topic, payload, priority, run_at, delay, expires_at, key,
                            scope, scope_id, template_version, max_retries, timeout, tags, trace, n)
),
ins AS (
    INSERT INTO public._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray)
    SELECT s.id, s.topic, s.payload::json, 'pending', s.priority,
           coalesce(s.run_at, now + s.delay * interval '1 second'),
           coalesce(s.run_at <= now, s.delay = 0),
           s.expires_at, s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout, s.tags::jsonb,
           s.trace, now, now, s.id < low OR s.id >= high
    FROM s, clock WHERE in_time
    ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n
    ON CONFLICT DO NOTHING
    RETURNING id, topic
),
noted AS (
    INSERT INTO public._jobs_counts (at, topic, enqueued)
    SELECT (SELECT now FROM clock), topic, count(*) FROM ins GROUP BY topic
)
SELECT (SELECT now FROM clock) AS now,
       -- An insert may wait for another transaction's key. Once its rows are there, a repeat waits for this transaction.
       -- If they came after $16, the repeat may have been first: an error takes them back.
       CASE WHEN count(*) > 0 AND clock_timestamp() > $16::timestamptz
            THEN ('too late by ' || (clock_timestamp() - $16::timestamptz))::int
            ELSE count(*)::int END AS inserted,
       -- NULL if all are new
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids
FROM ins;

-- ════ insert_new ════

-- Insert many jobs. Jobs whose id or live key is taken are left out; the store asks `existing` for them. Batches with keys
-- are sorted by them, so that two batches can't deadlock. After $16 the client may have asked again, so nothing is
-- inserted: see clock.py.
WITH clock AS MATERIALIZED (
    SELECT now, now <= coalesce($16::timestamptz, 'infinity') AS in_time,
           public._jobs_first_id(now - interval '1 hour') AS low,
           public._jobs_first_id(now + interval '1 hour') AS high
    FROM (SELECT clock_timestamp() AS now) c
),
s AS (
    SELECT s.* FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::float8[], $7::timestamptz[], $8::text[],
        $9::text[], $10::text[], $11::int[], $12::int[], $13::float8[], $14::text[], $15::text[]
    ) WITH ORDINALITY AS s (id, topic, payload, priority, run_at, delay, expires_at, key,
                            scope, scope_id, template_version, max_retries, timeout, tags, trace, n)
),
ins AS (
    INSERT INTO public._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray)
    SELECT s.id, s.topic, s.payload::json, 'pending', s.priority,
           coalesce(s.run_at, now + s.delay * interval '1 second'),
           coalesce(s.run_at <= now, s.delay = 0),
           s.expires_at, s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout, s.tags::jsonb,
           s.trace, now, now, s.id < low OR s.id >= high
    FROM s, clock WHERE in_time
    
    
    RETURNING id, topic
),
noted AS (
    INSERT INTO public._jobs_counts (at, topic, enqueued)
    SELECT (SELECT now FROM clock), topic, count(*) FROM ins GROUP BY topic
)
SELECT (SELECT now FROM clock) AS now,
       -- An insert may wait for another transaction's key. Once its rows are there, a repeat waits for this transaction.
       -- If they came after $16, the repeat may have been first: an error takes them back.
       CASE WHEN count(*) > 0 AND clock_timestamp() > $16::timestamptz
            THEN ('too late by ' || (clock_timestamp() - $16::timestamptz))::int
            ELSE count(*)::int END AS inserted,
       -- NULL if all are new
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids
FROM ins;

-- ════ insert_on_conn ════

-- insert.sql on a caller's connection. One text has all parameters and one text is the answer, with times as microseconds.
-- So it works with any driver and whatever parameter style, adapters, codecs and row factories the caller has set.
WITH clock AS MATERIALIZED (
    SELECT now, public._jobs_first_id(now - interval '1 hour') AS low,
           public._jobs_first_id(now + interval '1 hour') AS high
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
    INSERT INTO public._jobs (
        id, topic, payload, status, priority, run_at, ready, expires_at, key, scope, scope_id, template_version,
        max_retries, timeout, tags, trace, created, updated, stray, if_live, line, line_seq, flow_id, share)
    SELECT s.id, s.topic, s.payload, CASE WHEN s.blocked IS TRUE THEN 'blocked' ELSE 'pending' END, s.priority,
           coalesce(public._jobs_time(s.run_at), now + s.delay * interval '1 second'),
           s.blocked IS NOT TRUE AND coalesce(public._jobs_time(s.run_at) <= now, s.delay = 0),
           public._jobs_time(s.expires_at), s.key, s.scope, s.scope_id, s.template_version, s.max_retries, s.timeout,
           s.tags, s.trace, now, now, s.id < low OR s.id >= high, s.if_live, s.line,
           CASE WHEN s.if_live IS NOT NULL THEN nextval('public._jobs_line_seq') END, s.flow_id, s.share
    -- Batches that take keys in the same order can't deadlock. The jobs of a line get their places in this order, too.
    FROM (SELECT * FROM s ORDER BY s.topic, s.key, coalesce(s.scope, ''), coalesce(s.scope_id, ''), s.n) s, clock
    ON CONFLICT DO NOTHING
    RETURNING id, topic
)
SELECT json_build_object(
    'now', public._jobs_us((SELECT now FROM clock)),
    -- NULL if all are new
    'ids', CASE WHEN count(*) < (SELECT count(*) FROM s) THEN coalesce(json_agg(id), '[]') END,
    'noted', public._jobs_note_enqueued((SELECT now FROM clock), array_agg(topic), 1)
)::text
FROM ins;

-- ════ insert_undo ════

-- A repeated insert whose first try has been completed meanwhile must not stay. Runs in the inserting transaction,
-- after the insert and with a fresh snapshot: from the insert on nobody else can bring this id in, or move these rows.
DELETE FROM public._jobs j
WHERE j.ctid = ANY (ARRAY(  -- by ranges: see read.sql. EXISTS would lose their order.
    SELECT (SELECT n.ctid FROM public._jobs n WHERE n.id >= s.id AND n.id <= s.id ORDER BY n.id LIMIT 1) FROM unnest($1::uuid[]) AS s (id)
    WHERE (SELECT a.id FROM public._jobs_archive a WHERE a.id >= s.id AND a.id <= s.id ORDER BY a.id LIMIT 1) IS NOT NULL
))
RETURNING j.id, public._jobs_note_enqueued(j.created, ARRAY[j.topic], -1);

-- ════ insert_undo_on_conn ════

WITH gone AS (
-- A repeated insert whose first try has been completed meanwhile must not stay. Runs in the inserting transaction,
-- after the insert and with a fresh snapshot: from the insert on nobody else can bring this id in, or move these rows.
DELETE FROM public._jobs j
WHERE j.ctid = ANY (ARRAY(  -- by ranges: see read.sql. EXISTS would lose their order.
    SELECT (SELECT n.ctid FROM public._jobs n WHERE n.id >= s.id AND n.id <= s.id ORDER BY n.id LIMIT 1) FROM json_to_recordset($1::text::json) AS s (id uuid, n int, topic text, scope text, scope_id text, key text)
    WHERE (SELECT a.id FROM public._jobs_archive a WHERE a.id >= s.id AND a.id <= s.id ORDER BY a.id LIMIT 1) IS NOT NULL
))
RETURNING j.id, public._jobs_note_enqueued(j.created, ARRAY[j.topic], -1)
)
SELECT coalesce(json_agg(id), '[]')::text FROM gone;

-- ════ limits ════

-- What is stored of limits: see stores/limits.py. Records are few.
SELECT l.epoch, public._jobs_us(clock_timestamp()), l.turns::text,
       ARRAY(SELECT id FROM public._jobs_records WHERE kind = 'limited' ORDER BY id),
       ARRAY(SELECT data::text FROM public._jobs_records WHERE kind = 'limited' ORDER BY id),
       ARRAY(SELECT data::text FROM public._jobs_records WHERE kind = 'limit' ORDER BY id),
       ARRAY(SELECT topic FROM public._jobs_topics
             WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp())))
FROM public._jobs_limits l;

-- ════ limits_held ════

-- How many jobs of these topics are held by workers, by share. A waiting job that is cancelled has no lease.
SELECT topic, share, count(*)::int FROM public._jobs
WHERE locked_until IS NOT NULL AND topic = ANY ($1::text[]) GROUP BY topic, share;

-- ════ limits_jobs ════

-- The first jobs of these shares ($3) of a lane ($1, $2), at most $4 of each. The empty text: those that have none, if they are
-- among the first jobs of the lane.
SELECT s.share, h.rank, public._jobs_us(h.run_at), h.id::text
FROM unnest($3::text[]) AS s (share) CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
    WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int AND j.share = s.share
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT $4::int
) h
UNION ALL
(SELECT '', head.rank, public._jobs_us(head.run_at), head.id::text FROM (
    SELECT -j.priority AS rank, j.run_at, j.id, j.share FROM public._jobs j
    WHERE j.ready AND j.topic = $1::text AND j.template_version = $2::int
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT 1000
 ) head
 WHERE '' = ANY ($3::text[]) AND head.share IS NULL
 ORDER BY head.rank, head.run_at, head.id LIMIT $4::int);

-- ════ limits_others ════

-- The first jobs of lanes ($1, $2) without limits, at most $3: a claim of limited topics lets those of a higher priority go first.
SELECT h.rank, public._jobs_us(h.run_at), h.id::text
FROM unnest($1::text[], $2::int[]) AS l (topic, template_version) CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
    WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT $3::int
) h
ORDER BY h.rank, h.run_at, h.id LIMIT $3::int;

-- ════ limits_rows ════

-- The first jobs of lanes ($1, $2) whose limits are by no field; of each at most $3. With the place of the lane, from 1 on.
SELECT l.n::int, h.rank, public._jobs_us(h.run_at), h.id::text
FROM unnest($1::text[], $2::int[], $3::int[]) WITH ORDINALITY AS l (topic, template_version, most, n)
CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
    WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT l.most
) h
ORDER BY l.n, h.rank, h.run_at, h.id;

-- ════ limits_shares ════

-- The shares of a lane ($1, $2) behind $3 that have jobs to start, at most $4: one look into the index for each. NULL: from the
-- first on, and the empty text for jobs that have none, if some of the first jobs of the lane have none.
WITH RECURSIVE walk (share) AS (
    (SELECT j.share FROM public._jobs j
     WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int
       AND j.share > coalesce($3::text, '')
       AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
     ORDER BY j.share LIMIT 1)
    UNION ALL
    SELECT (SELECT j.share FROM public._jobs j
            WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int
              AND j.share > w.share
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY j.share LIMIT 1)
    FROM walk w WHERE w.share IS NOT NULL
),
none AS (
    SELECT '' AS share WHERE $3::text IS NULL AND EXISTS (
        SELECT FROM (SELECT j.share FROM public._jobs j
                     WHERE j.ready AND j.topic = $1::text AND j.template_version = $2::int
                       AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
                     ORDER BY -j.priority, j.run_at, j.id LIMIT 1000) head
        WHERE head.share IS NULL)
)
SELECT share FROM none
UNION ALL
(SELECT share FROM walk WHERE share IS NOT NULL LIMIT $4::int);

-- ════ limits_starts ════

-- The starts of these rates ($1) and values ($2) after $3 and until $4, in microseconds: the newest $5 parts of a window.
SELECT s.rule, s.value, public._jobs_us(s.at), s.n
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[]) AS asked (rule, value, after, before, most)
CROSS JOIN LATERAL (
    SELECT k.rule, k.value, k.at, k.n FROM public._jobs_starts k
    WHERE k.rule = asked.rule AND k.value = asked.value AND k.bucket > asked.after
      AND public._jobs_us(k.at) > asked.after AND public._jobs_us(k.at) <= asked.before
    ORDER BY k.bucket DESC LIMIT asked.most
) s;

-- ════ limits_take ════

-- Claims these jobs ($3) of limited topics, if nothing was claimed since the claim was decided ($1: the epoch of then). $2: whose
-- turn it was last. $4–$6: worker, lease, start mark. $7: not after this time. $8: starts of rates, as JSON; their `bucket` is the end of the part of a window. $9: a job is only taken if
-- it still has this share; the empty text: none; NULL: any.
WITH
turn AS MATERIALIZED (
    UPDATE public._jobs_limits SET epoch = epoch + 1, turns = $2::text::json
    WHERE epoch = $1::bigint AND clock_timestamp() <= coalesce($7::timestamptz, 'infinity') RETURNING epoch
),
locked AS MATERIALIZED (
    SELECT h.tid FROM turn CROSS JOIN unnest($3::uuid[], $9::text[]) AS s (id, share) CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM public._jobs j
        WHERE j.id = s.id AND j.ready AND (s.share IS NULL OR coalesce(j.share, '') = s.share)
          -- It may have been paused since the claim was decided.
          AND j.topic <> ALL (ARRAY(
              SELECT topic FROM public._jobs_topics
              WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))))
        FOR UPDATE OF j SKIP LOCKED
    ) h
),
claim_clock AS MATERIALIZED (
    SELECT now, now + $5::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now FROM turn) c
),
claimed AS (
    UPDATE public._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1,
        locked_by = $4::text, locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $6::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM locked))
    RETURNING j.id, j.topic, j.template_version, j.payload, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.cancel_requested_at, j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped
),
counted AS (
    INSERT INTO public._jobs_starts AS k (rule, value, bucket, n, at, until)
    SELECT s.rule, s.value, (public._jobs_us(now) / s.width + 1) * s.width - 1, s.n, now, now + s.length * interval '1 microsecond'
    FROM claim_clock, json_to_recordset($8::text::json) AS s (rule text, value text, n int, width bigint, length bigint)
    ON CONFLICT (rule, value, bucket) DO UPDATE SET n = k.n + excluded.n, at = greatest(k.at, excluded.at),
        until = greatest(k.until, excluded.until)
)
SELECT NULL::int[] AS seen, NULL::float8 AS next_due, now, until, NULL::uuid[] AS applied, NULL::uuid, NULL::text, NULL::int, NULL::json, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::float8, NULL::json, NULL::text, NULL::int, NULL::int, NULL::int, NULL::float8, NULL::int, NULL::timestamptz, NULL::text, NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::timestamptz, NULL::int FROM claim_clock
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j;

-- ════ limits_usage ════

-- The newest starts of all rates that still count, at most $1.
SELECT rule, value, public._jobs_us(at), n FROM public._jobs_starts
WHERE until > (SELECT clock_timestamp()) ORDER BY until DESC LIMIT $1::int;

-- ════ limits_waiting ════

-- How many jobs of limited topics are due, counted up to $1.
SELECT t.topic, (SELECT count(*)::int FROM (
    SELECT FROM public._jobs j WHERE j.ready AND j.topic = t.topic LIMIT $1::int) counted)
FROM public._jobs_topics t WHERE t.limited;

-- ════ lock_jobs ════

-- Locks jobs by id, in the order of ids as every verb does it, and reads them as core.moves.Row.
-- $2: with their payloads. $3: also those of the archive whose ids have been used again.
-- Rows of the archive are not locked: only last log lines update them, and a delete that misses one is repeated (Conflict in
-- moves.py). A lock would be taken in another order than those of live jobs, and two transactions could wait in a circle.
WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, CASE WHEN $2::bool THEN j.payload::text END AS payload, j.ctid::text AS place FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
old AS MATERIALIZED (
    SELECT a.* FROM s CROSS JOIN LATERAL (
        SELECT j.id::text AS id, j.topic AS topic, 'completed' AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, NULL::text AS line, NULL::bigint AS line_seq, NULL::text AS fingerprint, j.step AS step, NULL::text AS waits_for, 0 AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, CASE WHEN $2::bool THEN j.payload::text END AS payload, j.ctid::text AS place FROM public._jobs_archive j
        WHERE j.id >= s.id AND j.id <= s.id ORDER BY j.id LIMIT 1  -- by a range: see read.sql
    ) a
    WHERE $3::bool OR s.id NOT IN (SELECT id::uuid FROM held)
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, found.* FROM (SELECT * FROM old UNION ALL SELECT * FROM held) AS found;

-- ════ look ════

-- Without locks. Conditions on status, version or worker would let the planner choose a partial index.
SELECT id, status, version, locked_by FROM public._jobs WHERE id = ANY ($1::uuid[]);

-- ════ mark ════

-- Two readers with the same snapshot see the same rows.
SELECT pg_current_snapshot()::text;

-- ════ newest_of_scopes ════

-- The newest jobs of each scope_id. $2, $3: the topics and statuses that are wanted, with spaces between them; NULL: all.
-- Of each table $5 rows are read. The next row is `beyond`: nothing is known of the rows after it.
SELECT asked.n, j.id::text, j.beyond
FROM (
    SELECT n, scope_id, string_to_array(topics, ' ') AS topics, string_to_array(statuses, ' ') AS statuses
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS a (scope_id, topics, statuses, n)
) asked
CROSS JOIN LATERAL (
    SELECT id, beyond FROM (
        (SELECT id, seen > $5::int AS beyond FROM (
            SELECT id, topic, status, row_number() OVER (ORDER BY id DESC) AS seen FROM (
                SELECT id, topic, status FROM public._jobs
                WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $5::int + 1
            ) newest
        ) numbered
        WHERE seen > $5::int OR ((asked.topics IS NULL OR topic = ANY (asked.topics))
                                 AND (asked.statuses IS NULL OR status = ANY (asked.statuses)))
        ORDER BY id DESC LIMIT $4::int)
        UNION ALL
        (SELECT id, seen > $5::int AS beyond FROM (
            SELECT id, topic, row_number() OVER (ORDER BY id DESC) AS seen FROM (
                SELECT id, topic FROM public._jobs_archive
                WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $5::int + 1
            ) newest
        ) numbered
        WHERE (asked.statuses IS NULL OR 'completed' = ANY (asked.statuses))
          AND (seen > $5::int OR asked.topics IS NULL OR topic = ANY (asked.topics))
        ORDER BY id DESC LIMIT $4::int)
    ) both_tables ORDER BY id DESC LIMIT $4::int
) j
ORDER BY asked.n, j.id DESC;

-- ════ next_fire ════

-- Seconds until the next nominal time of any schedule but these. No row: there is none.
SELECT extract(epoch FROM s.next_run_at - clock_timestamp())::float8 FROM public._jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.id <> ALL ($1::uuid[])
ORDER BY s.next_run_at LIMIT 1;

-- ════ next_fire_later ════

-- The same, of the times that have not come yet.
SELECT extract(epoch FROM s.next_run_at - clock_timestamp())::float8 FROM public._jobs_schedules s
WHERE s.next_run_at IS NOT NULL AND s.next_run_at > (SELECT clock_timestamp()) AND s.id <> ALL ($1::uuid[])
ORDER BY s.next_run_at LIMIT 1;

-- ════ note_lines_on_conn ════

-- Notes the lines that jobs have come to. A statement of its own: callers without such jobs need no right to this table.
WITH noted AS (
    INSERT INTO public._jobs_ends (line) SELECT line FROM json_array_elements_text($1::text::json) AS l (line)
    RETURNING 1
)
SELECT count(*)::text FROM noted;

-- ════ notify_on_conn ════

SELECT 'rung' FROM pg_notify($1::text, '');

-- ════ once_held_on_conn ════

-- Which jobs have these keys for ever. By a fresh snapshot: another transaction may have been first.
SELECT coalesce(json_object_agg(o.line, o.job_id), '{}')::text FROM public._jobs_once o
WHERE o.line = ANY (ARRAY(SELECT json_array_elements_text($1::text::json)));

-- ════ once_on_conn ════

-- Note jobs whose keys count once: the parameter is {line: id}. A line that is there stays as it is. In order: no two can deadlock.
WITH new AS (
    INSERT INTO public._jobs_once (line, job_id, at)
    SELECT s.key, s.value::uuid, clock_timestamp() FROM json_each_text($1::text::json) s ORDER BY s.key
    ON CONFLICT (line) DO NOTHING
    RETURNING 1
)
SELECT count(*)::text FROM new;

-- ════ once_undo_on_conn ════

-- Takes back jobs that this transaction has just inserted (the parameter has their ids), and the keys that they have for ever.
WITH asked AS MATERIALIZED (SELECT value::uuid AS id FROM json_array_elements_text($1::text::json)),
freed AS (DELETE FROM public._jobs_once WHERE job_id IN (SELECT id FROM asked)),
gone AS (
    DELETE FROM public._jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM asked))
    RETURNING public._jobs_note_enqueued(j.created, ARRAY[j.topic], -1)
)
SELECT count(*)::text FROM gone;

-- ════ pause ════

WITH paused AS (
    INSERT INTO public._jobs_topics (topic, paused_at, paused_until, paused_reason, paused_by)
    VALUES ($1::text, clock_timestamp(), $4::timestamptz, $3::text, $2::text)
    ON CONFLICT (topic) DO UPDATE SET
        paused_at = excluded.paused_at, paused_until = excluded.paused_until,
        paused_reason = excluded.paused_reason, paused_by = excluded.paused_by
    RETURNING topic, paused_at, paused_until
)
INSERT INTO public._jobs_audit (at, by, action, topic, reason, data)
SELECT paused_at, $2::text, 'pause', topic, $3::text, json_build_object('until', public._jobs_us(paused_until))
FROM paused;

-- ════ paused ════

SELECT topic, paused_at, paused_until, paused_reason, paused_by FROM public._jobs_topics
WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > clock_timestamp())
ORDER BY topic;

-- ════ place_in_line ════

-- The blocked jobs of a line are in one index, its head in another.
SELECT j.status <> 'blocked',
       (SELECT h.id::text FROM public._jobs h
        WHERE h.line = j.line AND h.status IN ('pending', 'processing', 'waiting', 'cancel_requested')),
       (SELECT b.id::text FROM public._jobs b
        WHERE b.line = j.line AND b.status = 'blocked' AND b.line_seq < j.line_seq
        ORDER BY b.line_seq DESC LIMIT 1),
       (SELECT count(*) FROM (SELECT FROM public._jobs b
                              WHERE b.line = j.line AND b.status = 'blocked' AND b.line_seq < j.line_seq
                              LIMIT $2::int) a),
       (SELECT count(*) FROM (SELECT FROM public._jobs b
                              WHERE b.line = j.line AND b.status = 'blocked'
                                AND b.line_seq > CASE j.status WHEN 'blocked' THEN j.line_seq ELSE -1 END
                              LIMIT $2::int) a)
FROM public._jobs j
WHERE j.id = $1::uuid AND j.line IS NOT NULL AND j.status IN ('blocked', 'pending', 'processing', 'waiting', 'cancel_requested');

-- ════ probe_on_conn ════

-- What a caller's connection can see and do. It reads the catalogue only, because an error (a missing table, a missing
-- privilege) would abort the caller's transaction. to_regclass raises one, too, without USAGE on the schema.
SELECT json_build_object(
    'database', current_database(),
    'role', current_user,
    'read_only', current_setting('transaction_read_only') = 'on',
    'tables', jobs.oid IS NOT NULL AND meta.oid IS NOT NULL,
    'allowed', has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(meta.oid, 'SELECT')
               AND has_table_privilege(jobs.oid, 'SELECT') AND has_table_privilege(jobs.oid, 'INSERT')
)::text
FROM (SELECT $1::text AS name) s
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.name
LEFT JOIN pg_catalog.pg_class jobs ON jobs.relnamespace = n.oid AND jobs.relname = '_jobs'
LEFT JOIN pg_catalog.pg_class meta ON meta.relnamespace = n.oid AND meta.relname = '_jobs_meta';

-- ════ progress ════

-- NULL: the column stays as it is. `lines` is [[age in microseconds, level, text], …]; the newest $8 lines are kept.
WITH s AS MATERIALIZED (
    SELECT id, run, worker, progress, stage, message, lines::jsonb AS lines
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[], $5::text[], $6::text[], $7::text[])
        AS s (id, run, worker, progress, stage, message, lines)
    ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT *, clock_timestamp() AS now FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
reported AS (
    UPDATE public._jobs j SET
        progress = coalesce(ok.progress, j.progress), stage = coalesce(ok.stage, j.stage),
        message = coalesce(ok.message, j.message), updated = ok.now,
        log_dropped = j.log_dropped + greatest(  -- greatest ignores NULL
            0, coalesce(jsonb_array_length(j.log), 0) + jsonb_array_length(ok.lines) - $8::int),
        log = CASE WHEN ok.lines IS NULL THEN j.log ELSE (
            SELECT jsonb_agg(line ORDER BY new, n) FROM (
                SELECT false AS new, n, line FROM jsonb_array_elements(j.log) WITH ORDINALITY AS old (line, n)
                UNION ALL
                SELECT true, n, jsonb_build_object(
                    'at', public._jobs_us(ok.now) - (said->>0)::bigint, 'version', j.version, 'level', said->1,
                    'text', said->2)
                FROM jsonb_array_elements(ok.lines) WITH ORDINALITY AS fresh (said, n)
                ORDER BY new DESC, n DESC
                LIMIT $8::int
            ) newest) END
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
)
-- A row that was changed since our snapshot is locked, but too new for the UPDATE.
SELECT held.id, held.status, held.version, held.locked_by, reported.id IS NOT NULL AS written
FROM held LEFT JOIN reported ON reported.id = held.id;

-- ════ progress_archived ════

-- Lines that a run has logged before it completed its job in its own transaction. They reach the store when the job is
-- archived. Guarded by version AND worker (NULL: any worker): the archived row has those of the run that completed it.
WITH s AS MATERIALIZED (
    SELECT id, run, worker, lines::jsonb AS lines, clock_timestamp() AS now
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) AS s (id, run, worker, lines)
)
UPDATE public._jobs_archive j SET
        log_dropped = j.log_dropped + greatest(  -- greatest ignores NULL
            0, coalesce(jsonb_array_length(j.log), 0) + jsonb_array_length(s.lines) - $5::int),
        log = CASE WHEN s.lines IS NULL THEN j.log ELSE (
            SELECT jsonb_agg(line ORDER BY new, n) FROM (
                SELECT false AS new, n, line FROM jsonb_array_elements(j.log) WITH ORDINALITY AS old (line, n)
                UNION ALL
                SELECT true, n, jsonb_build_object(
                    'at', public._jobs_us(s.now) - (said->>0)::bigint, 'version', j.version, 'level', said->1,
                    'text', said->2)
                FROM jsonb_array_elements(s.lines) WITH ORDINALITY AS fresh (said, n)
                ORDER BY new DESC, n DESC
                LIMIT $5::int
            ) newest) END
FROM s
WHERE j.id = ANY (ARRAY(SELECT id FROM s)) AND j.id = s.id
  AND j.version = s.run AND (s.worker IS NULL OR s.worker = j.locked_by);

-- ════ promote ════

-- Makes pending jobs that have come due ready, and counts the waits that are over: `resume_due` finds those.
-- $2: the run_at after which to begin, see claim_bounds.py.
WITH meter AS MATERIALIZED (
    SELECT (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due, clock_timestamp() AS at
),
picked AS MATERIALIZED (
    SELECT ctid AS tid, status FROM public._jobs
    WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at <= (SELECT at FROM meter)
      AND run_at > coalesce($2::timestamptz, '-infinity')
    ORDER BY run_at
    LIMIT $1::int
    FOR UPDATE SKIP LOCKED
),
promoted AS (
    UPDATE public._jobs SET ready = true
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked WHERE status = 'pending')) RETURNING run_at
)
SELECT promoted, oldest, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due AS dead, meter.at, (
    SELECT count(*)::int FROM picked WHERE status = 'waiting') AS waits
FROM meter CROSS JOIN (SELECT count(*)::int AS promoted, min(run_at) AS oldest FROM promoted OFFSET 0) summary;

-- ════ prune ════

-- $1: jobs at most. $2, $3: statuses and for how many seconds their jobs are kept; NULL: for ever. $4, $5, $6: the same for
-- topics with a retention of their own. The index is searched topic by topic, so that jobs that are kept are not read.
WITH RECURSIVE rule AS MATERIALIZED (SELECT * FROM unnest($2::text[], $3::float8[]) AS r (status, seconds)),
own AS MATERIALIZED (SELECT * FROM unnest($4::text[], $5::text[], $6::float8[]) AS o (status, topic, seconds)),
dead (status, topic) AS (
    SELECT status, '' FROM rule WHERE status <> 'completed'
    UNION ALL
    SELECT dead.status, (
        SELECT j.topic FROM public._jobs j
        WHERE j.status = dead.status AND j.finished_at IS NOT NULL AND j.topic > dead.topic ORDER BY j.topic LIMIT 1)
    FROM dead WHERE dead.topic IS NOT NULL
),
done (status, topic) AS (
    SELECT status, '' FROM rule WHERE status = 'completed'
    UNION ALL
    SELECT done.status, (
        SELECT a.topic FROM public._jobs_archive a WHERE a.topic > done.topic ORDER BY a.topic LIMIT 1)
    FROM done WHERE done.topic IS NOT NULL
),
kept AS MATERIALIZED (
    SELECT t.status, t.topic, (SELECT clock_timestamp()) - CASE WHEN own.topic IS NULL THEN rule.seconds
                                                                ELSE own.seconds END * interval '1 second' AS since
    FROM (SELECT * FROM dead UNION ALL SELECT * FROM done) t
    JOIN rule ON rule.status = t.status LEFT JOIN own ON own.status = t.status AND own.topic = t.topic
    WHERE t.topic <> ''
),
old AS MATERIALIZED (
    SELECT h.tid FROM (SELECT * FROM kept WHERE status <> 'completed' AND since IS NOT NULL) k CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM public._jobs j
        WHERE j.status = k.status AND j.topic = k.topic AND j.finished_at IS NOT NULL AND j.finished_at <= k.since
        ORDER BY j.finished_at
        LIMIT $1::int
        FOR UPDATE SKIP LOCKED
    ) h
    LIMIT $1::int
),
gone AS (DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM old)) RETURNING id, step, signals),
old_archived AS MATERIALIZED (
    SELECT h.* FROM (SELECT * FROM kept WHERE status = 'completed' AND since IS NOT NULL) k CROSS JOIN LATERAL (
        SELECT a.id, a.ctid AS tid FROM public._jobs_archive a WHERE a.topic = k.topic AND a.finished_at <= k.since
        ORDER BY a.finished_at
        LIMIT $1::int
    ) h
    LIMIT $1::int - (SELECT count(*) FROM old)
),
gone_archived AS (  -- see delete.sql
    DELETE FROM public._jobs_archive
    WHERE ctid = ANY (ARRAY(SELECT tid FROM old_archived)) AND (id IN (SELECT id FROM old_archived)) IS TRUE
    RETURNING id, step
),
dropped_steps AS (  -- an id may have been used twice, and the other job is still there
    DELETE FROM public._jobs_steps WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE step IS NOT NULL
        UNION ALL
        SELECT a.id FROM gone_archived a
        WHERE a.step IS NOT NULL AND NOT EXISTS (SELECT FROM public._jobs j WHERE j.id = a.id)))
),
dropped_signals AS (  -- the archive does not say whether a job had any
    DELETE FROM public._jobs_signals WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE signals IS NOT NULL
        UNION ALL
        SELECT a.id FROM gone_archived a WHERE NOT EXISTS (SELECT FROM public._jobs j WHERE j.id = a.id)))
)
SELECT (SELECT count(*) FROM gone)::int + (SELECT count(*) FROM gone_archived)::int;

-- ════ prune_fires ════

DELETE FROM public._jobs_fires
WHERE (schedule_id, fire_at) IN (
    SELECT schedule_id, fire_at FROM public._jobs_fires
    WHERE job_id IS NULL AND at < clock_timestamp() - $2::float8 * interval '1 second' LIMIT $1::int)
RETURNING 1;

-- ════ prune_flows ════

-- Removes flows that have no job any more. Each is looked at once an hour, and not in its first minutes. $1: at most so many.
WITH old AS MATERIALIZED (
    SELECT f.id FROM public._jobs_flows f WHERE f.looked < clock_timestamp() - interval '1 hour'
    ORDER BY f.looked LIMIT $1::int FOR UPDATE SKIP LOCKED
),
gone AS MATERIALIZED (
    SELECT o.id FROM old o
    WHERE NOT EXISTS (SELECT FROM public._jobs j WHERE j.flow_id = o.id AND j.flow_id IS NOT NULL)
      AND NOT EXISTS (SELECT FROM public._jobs_archive a WHERE a.flow_id = o.id AND a.flow_id IS NOT NULL)
),
edges AS (DELETE FROM public._jobs_edges WHERE flow_id = ANY (ARRAY(SELECT id FROM gone))),
dropped AS (DELETE FROM public._jobs_flows WHERE id = ANY (ARRAY(SELECT id FROM gone))),
seen AS (
    UPDATE public._jobs_flows SET looked = clock_timestamp()
    WHERE id = ANY (ARRAY(SELECT id FROM old)) AND id <> ALL (ARRAY(SELECT id FROM gone))
)
SELECT count(*)::int FROM old;

-- ════ prune_starts ════

-- Removes starts that count no more. $1: at most so many.
DELETE FROM public._jobs_starts WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM public._jobs_starts WHERE until < clock_timestamp() ORDER BY until LIMIT $1::int FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- ════ prune_throttles ════

DELETE FROM public._jobs_throttles WHERE line = ANY (ARRAY(
    SELECT line FROM public._jobs_throttles WHERE until <= (SELECT clock_timestamp()) ORDER BY until LIMIT $1::int
    FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- ════ read_jobs ════

-- One by one: for = ANY the planner would look at all parts of the archive, and take longer to decide than to read
-- (measured for 1000 ids: 45 ms, and 10 ms like this). In the archive each as the first of a range: only the primary key
-- has that order. To a plan that was made while a part of the archive was empty, `id = …` is as cheap by (topic, id),
-- which it would then read from end to end until the next ANALYZE, however many jobs have come. A caller's own id may have
-- been used twice, and stand in both tables.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT j.id, j.topic, j.template_version, j.payload, j.status, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.stage, j.message, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.locked_by, j.locked_until, j.cancel_requested_at, j.cancel_reason, j.waits_for, j.flow_id, j.schedule_id, j.fire_at, j.created, j.updated, j.claimed_at, j.started_at, j.finished_at, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped FROM public._jobs j WHERE j.id = asked.id
    UNION ALL
    (SELECT j.id, j.topic, j.template_version, j.payload, 'completed', j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, 100.0, j.stage, j.message, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.locked_by, NULL, j.cancel_requested_at, j.cancel_reason, NULL, j.flow_id, j.schedule_id, j.fire_at, j.created, j.updated, j.claimed_at, j.started_at, j.finished_at, 2 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped FROM public._jobs_archive j WHERE j.id >= asked.id AND j.id <= asked.id ORDER BY j.id LIMIT 1)
) j;

-- ════ read_logs ════

-- One by one: for = ANY the planner would look at all parts of the archive, and take longer to decide than to read
-- (measured for 1000 ids: 45 ms, and 10 ms like this). In the archive each as the first of a range: only the primary key
-- has that order. To a plan that was made while a part of the archive was empty, `id = …` is as cheap by (topic, id),
-- which it would then read from end to end until the next ANALYZE, however many jobs have come. A caller's own id may have
-- been used twice, and stand in both tables.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT j.id, j.log, j.log_dropped FROM public._jobs j WHERE j.id = asked.id
    UNION ALL
    (SELECT j.id, j.log, j.log_dropped FROM public._jobs_archive j WHERE j.id >= asked.id AND j.id <= asked.id ORDER BY j.id LIMIT 1)
) j;

-- ════ read_states ════

-- One by one: for = ANY the planner would look at all parts of the archive, and take longer to decide than to read
-- (measured for 1000 ids: 45 ms, and 10 ms like this). In the archive each as the first of a range: only the primary key
-- has that order. To a plan that was made while a part of the archive was empty, `id = …` is as cheap by (topic, id),
-- which it would then read from end to end until the next ANALYZE, however many jobs have come. A caller's own id may have
-- been used twice, and stand in both tables.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT j.id, j.topic, j.status, j.version, j.progress, j.stage, j.message, j.step, j.waits_for, j.key, j.scope, j.scope_id, j.flow_id, j.locked_by, j.priority, j.retries, j.max_retries, j.crashes, j.timeout, j.created, j.updated, j.run_at, j.expires_at, j.started_at, j.finished_at, j.claimed_at FROM public._jobs j WHERE j.id = asked.id
    UNION ALL
    (SELECT j.id, j.topic, 'completed', j.version, 100.0, j.stage, j.message, j.step, NULL, j.key, j.scope, j.scope_id, j.flow_id, j.locked_by, j.priority, j.retries, j.max_retries, j.crashes, j.timeout, j.created, j.updated, j.run_at, j.expires_at, j.started_at, j.finished_at, j.claimed_at FROM public._jobs_archive j WHERE j.id >= asked.id AND j.id <= asked.id ORDER BY j.id LIMIT 1)
) j;

-- ════ read_statuses ════

-- One by one: for = ANY the planner would look at all parts of the archive, and take longer to decide than to read
-- (measured for 1000 ids: 45 ms, and 10 ms like this). In the archive each as the first of a range: only the primary key
-- has that order. To a plan that was made while a part of the archive was empty, `id = …` is as cheap by (topic, id),
-- which it would then read from end to end until the next ANALYZE, however many jobs have come. A caller's own id may have
-- been used twice, and stand in both tables.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT j.id, j.status FROM public._jobs j WHERE j.id = asked.id
    UNION ALL
    (SELECT j.id, 'completed' FROM public._jobs_archive j WHERE j.id >= asked.id AND j.id <= asked.id ORDER BY j.id LIMIT 1)
) j;

-- ════ record_delete ════

DELETE FROM public._jobs_records
WHERE kind = $1::text AND id = $2::text AND ($3::int IS NULL OR revision = $3::int)
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING 1;

-- ════ record_put ════

-- $5: true if a record that has not expired must not be replaced.
INSERT INTO public._jobs_records AS r (kind, id, created, updated, expires_at, data)
SELECT $1::text, $2::text, now, now, $4::timestamptz, $3::text::json FROM (SELECT clock_timestamp() AS now) c
ON CONFLICT (kind, id) DO UPDATE SET
    revision = r.revision + 1, updated = excluded.updated, expires_at = excluded.expires_at, data = excluded.data
WHERE NOT $5::bool OR r.expires_at <= excluded.updated
RETURNING 1;

-- ════ record_replace ════

UPDATE public._jobs_records SET
    revision = revision + 1, updated = clock_timestamp(), expires_at = $4::timestamptz, data = $3::text::json
WHERE kind = $1::text AND id = $2::text AND revision = $5::int
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING 1;

-- ════ record_sweep ════

DELETE FROM public._jobs_records
WHERE (kind, id) IN (SELECT kind, id FROM public._jobs_records WHERE expires_at <= clock_timestamp() LIMIT $1::int)
RETURNING 1;

-- ════ records ════

SELECT id, revision, created, updated, expires_at, data FROM public._jobs_records
WHERE kind = $1::text AND ($2::text[] IS NULL OR id = ANY ($2::text[]))
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
  AND id > $3::text
ORDER BY id
LIMIT $4::int;

-- ════ report ════

INSERT INTO public._jobs_workers AS w (
    name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen)
SELECT $1::text, $2::text, $3::int, $4::text[], $5::int, $6::int, $7::float8, $8::bool, $9::text, now, now
FROM (SELECT clock_timestamp() AS now) clock
ON CONFLICT (name) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, topics = excluded.topics, concurrency = excluded.concurrency,
    running = excluded.running, lease = excluded.lease, stopping = excluded.stopping, rowlock = excluded.rowlock,
    seen = excluded.seen
RETURNING seen;

-- ════ rescue_backoff ════

SELECT topic, backoff FROM public._jobs_topics WHERE backoff IS NOT NULL;

-- ════ rescue_expired ════

-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
    WHERE j.locked_until < (SELECT least(clock_timestamp(), coalesce($2::timestamptz, 'infinity')))
    ORDER BY j.locked_until
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, held.* FROM held;

-- ════ rescue_workers ════

-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
    WHERE j.locked_until > '-infinity' AND j.locked_by = ANY ($2::text[])
    ORDER BY j.locked_until
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, held.* FROM held;

-- ════ resume ════

WITH resumed AS (
    UPDATE public._jobs_topics SET paused_at = NULL, paused_until = NULL, paused_reason = NULL, paused_by = NULL
    WHERE topic = $1::text AND paused_at IS NOT NULL
      AND (paused_until IS NULL OR paused_until > clock_timestamp())  -- else the pause is over already
    RETURNING topic
)
INSERT INTO public._jobs_audit (at, by, action, topic, reason)
SELECT clock_timestamp(), $2::text, 'resume', topic, $3::text FROM resumed
RETURNING topic;

-- ════ resume_due ════

-- Locks jobs that are due, and reads them as core.moves.Row. Jobs that another transaction has locked wait for the next time.
WITH held AS MATERIALIZED (
    SELECT j.id::text AS id, j.topic AS topic, j.status AS status, j.template_version AS template_version, j.version AS version, j.priority AS priority, public._jobs_us(j.run_at) AS run_at, j.retries AS retries, j.max_retries AS max_retries, j.crashes AS crashes, public._jobs_us(j.created) AS created, public._jobs_us(j.claimed_at) AS claimed_at, public._jobs_us(j.started_at) AS started_at, public._jobs_us(j.finished_at) AS finished_at, j.locked_by AS locked_by, j.scope AS scope, j.scope_id AS scope_id, j.key AS key, j.if_live AS if_live, j.line AS line, j.line_seq AS line_seq, j.fingerprint AS fingerprint, j.step AS step, j.waits_for AS waits_for, coalesce(j.signals, 0) AS signals, j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped AS events, j.tags::text AS tags, NULL::text AS payload, j.ctid::text AS place FROM public._jobs j
    WHERE j.status = 'waiting' AND NOT j.ready AND j.run_at <= (SELECT clock_timestamp()) AND j.run_at > coalesce($2::timestamptz, '-infinity')
    ORDER BY j.run_at
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT clock_timestamp() AS now, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS silence, held.* FROM held;

-- ════ retire ════

-- SKIP LOCKED: another process removes the row, too, or its worker has just reported.
WITH gone AS MATERIALIZED (
    SELECT ctid AS tid FROM public._jobs_workers WHERE name = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
)
DELETE FROM public._jobs_workers WHERE ctid = ANY (ARRAY(SELECT tid FROM gone));

-- ════ ring ════

-- Waiting workers hold the lock $2, shared; one ringing process holds $3 (see doorbell.py). A process that tests $2 may
-- look like a waiting worker to another one, which then rings needlessly. The commit needs no flush, because nothing can be
-- lost: the server's NOTIFY lock is held for a shorter time.
SELECT pg_notify($1::text, ''), set_config('synchronous_commit', 'off', true)
WHERE CASE WHEN pg_try_advisory_xact_lock($2::bigint) THEN false ELSE pg_try_advisory_xact_lock($3::bigint) END;

-- ════ rollup_add ════

-- Counts are added. Sketches come whole: the process that folds has added them, and it is the only one.
INSERT INTO public._jobs_rollups AS r (
    span, topic, at, enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted, waits,
    runs)
SELECT * FROM unnest(
    $1::int[], $2::text[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::bytea[])
ON CONFLICT (span, topic, at) DO UPDATE SET
    enqueued = r.enqueued + excluded.enqueued, completed = r.completed + excluded.completed,
    failed = r.failed + excluded.failed, expired = r.expired + excluded.expired,
    cancelled = r.cancelled + excluded.cancelled, retried = r.retried + excluded.retried, lost = r.lost + excluded.lost,
    requeued = r.requeued + excluded.requeued, deleted = r.deleted + excluded.deleted,
    waits = coalesce(excluded.waits, r.waits), runs = coalesce(excluded.runs, r.runs);

-- ════ rollup_sketches ════

SELECT r.span, r.topic, date_part('epoch', r.at)::bigint, r.waits, r.runs
FROM unnest($1::int[], $2::text[], $3::timestamptz[]) AS k (span, topic, at)
JOIN public._jobs_rollups r ON r.span = k.span AND r.topic = k.topic AND r.at = k.at;

-- ════ rollup_sweep ════

WITH old AS MATERIALIZED (
    SELECT r.ctid AS tid
    FROM unnest($1::int[], $2::float8[]) AS s (span, kept)
    CROSS JOIN LATERAL (
        SELECT ctid FROM public._jobs_rollups
        WHERE span = s.span AND at < (SELECT clock_timestamp()) - s.kept * interval '1 second'
        ORDER BY at LIMIT $3::int FOR UPDATE SKIP LOCKED
    ) r
    LIMIT $3::int
)
DELETE FROM public._jobs_rollups WHERE ctid = ANY (ARRAY(SELECT tid FROM old));

-- ════ schedule_by_name ════

-- Lock schedules, and read the clock after that. One text in, one text out, as insert_on_conn.sql.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
found AS MATERIALIZED (
    SELECT s.* FROM public._jobs_schedules s
    WHERE s.name = (SELECT a->>'name' FROM asked) AND coalesce(s.scope, '') = (SELECT coalesce(a->>'scope', '') FROM asked) AND coalesce(s.scope_id, '') = (SELECT coalesce(a->>'scope_id', '') FROM asked) FOR UPDATE
)
SELECT json_build_object(
    'rows', (SELECT coalesce(json_agg(json_build_object('id', s.id, 'name', s.name, 'scope', s.scope, 'scope_id', s.scope_id, 'topic', s.topic, 'definition', s.definition::text, 'revision', s.revision, 'owner', s.owner, 'absent', s.absent, 'paused_at', public._jobs_us(s.paused_at), 'resumed_at', public._jobs_us(s.resumed_at), 'paused_by', s.paused_by, 'pause_reason', s.pause_reason, 'upto', public._jobs_us(s.upto), 'next_run_at', public._jobs_us(s.next_run_at), 'last_run_at', public._jobs_us(s.last_run_at), 'last_job_id', s.last_job_id, 'zone_data', s.zone_data, 'created', public._jobs_us(s.created), 'updated', public._jobs_us(s.updated)) ORDER BY s.id), '[]') FROM found s),
    'now', public._jobs_us(clock_timestamp())
)::text;

-- ════ schedules ════

-- By name, then id. An "over" schedule never fires again.
SELECT json_build_object('id', s.id, 'name', s.name, 'scope', s.scope, 'scope_id', s.scope_id, 'topic', s.topic, 'definition', s.definition::text, 'revision', s.revision, 'owner', s.owner, 'absent', s.absent, 'paused_at', public._jobs_us(s.paused_at), 'resumed_at', public._jobs_us(s.resumed_at), 'paused_by', s.paused_by, 'pause_reason', s.pause_reason, 'upto', public._jobs_us(s.upto), 'next_run_at', public._jobs_us(s.next_run_at), 'last_run_at', public._jobs_us(s.last_run_at), 'last_job_id', s.last_job_id, 'zone_data', s.zone_data, 'created', public._jobs_us(s.created), 'updated', public._jobs_us(s.updated))::text FROM public._jobs_schedules s
WHERE ($1::uuid[] IS NULL OR s.id = ANY ($1::uuid[]))
  AND ($2::text IS NULL OR s.name = $2) AND ($3::text IS NULL OR s.topic = $3)
  AND ($4::text IS NULL OR s.scope = $4) AND ($5::text IS NULL OR s.scope_id = $5)
  AND ($6::text IS NULL OR $6 = CASE WHEN s.next_run_at IS NULL THEN 'over'
                                     WHEN s.paused_at IS NOT NULL AND s.resumed_at IS NULL THEN 'paused'
                                     ELSE 'active' END)
  AND ($7::text IS NULL OR s.name ~ $7)
  AND ($8::text IS NULL OR s.owner = $8) AND ($9::bool IS NULL OR s.absent = $9)
  AND ($10::text IS NULL OR s.zone_data < $10)
  AND ($11::text IS NULL OR (s.name, s.id) > ($11::text, $12::uuid))
ORDER BY s.name, s.id LIMIT $13::int;

-- ════ schedules_by_id ════

-- Lock schedules, and read the clock after that. One text in, one text out, as insert_on_conn.sql.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
found AS MATERIALIZED (
    SELECT s.* FROM public._jobs_schedules s
    WHERE s.id = ANY (ARRAY(SELECT value::uuid FROM asked, json_array_elements_text(a->'ids'))) ORDER BY s.id FOR UPDATE
)
SELECT json_build_object(
    'rows', (SELECT coalesce(json_agg(json_build_object('id', s.id, 'name', s.name, 'scope', s.scope, 'scope_id', s.scope_id, 'topic', s.topic, 'definition', s.definition::text, 'revision', s.revision, 'owner', s.owner, 'absent', s.absent, 'paused_at', public._jobs_us(s.paused_at), 'resumed_at', public._jobs_us(s.resumed_at), 'paused_by', s.paused_by, 'pause_reason', s.pause_reason, 'upto', public._jobs_us(s.upto), 'next_run_at', public._jobs_us(s.next_run_at), 'last_run_at', public._jobs_us(s.last_run_at), 'last_job_id', s.last_job_id, 'zone_data', s.zone_data, 'created', public._jobs_us(s.created), 'updated', public._jobs_us(s.updated)) ORDER BY s.id), '[]') FROM found s),
    'now', public._jobs_us(clock_timestamp())
)::text;

-- ════ schedules_due ════

-- Lock schedules, and read the clock after that. One text in, one text out, as insert_on_conn.sql.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
found AS MATERIALIZED (
    SELECT s.* FROM public._jobs_schedules s
    WHERE s.next_run_at IS NOT NULL AND s.next_run_at <= (SELECT clock_timestamp()) AND s.id <> ALL (ARRAY(SELECT value::uuid FROM asked, json_array_elements_text(a->'skip'))) ORDER BY s.next_run_at LIMIT (SELECT (a->>'due')::int FROM asked) FOR UPDATE SKIP LOCKED
)
SELECT json_build_object(
    'rows', (SELECT coalesce(json_agg(json_build_object('id', s.id, 'name', s.name, 'scope', s.scope, 'scope_id', s.scope_id, 'topic', s.topic, 'definition', s.definition::text, 'revision', s.revision, 'owner', s.owner, 'absent', s.absent, 'paused_at', public._jobs_us(s.paused_at), 'resumed_at', public._jobs_us(s.resumed_at), 'paused_by', s.paused_by, 'pause_reason', s.pause_reason, 'upto', public._jobs_us(s.upto), 'next_run_at', public._jobs_us(s.next_run_at), 'last_run_at', public._jobs_us(s.last_run_at), 'last_job_id', s.last_job_id, 'zone_data', s.zone_data, 'created', public._jobs_us(s.created), 'updated', public._jobs_us(s.updated)) ORDER BY s.id), '[]') FROM found s),
    'now', public._jobs_us(clock_timestamp())
)::text;

-- ════ schedules_look_on_conn ════

-- Which of these times have a job already, and how many jobs are live in these lines? By a fresh snapshot: the schedules are
-- locked. In a line with two live jobs, one waits, even if none is the head yet.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a)
SELECT json_build_object(
    'fired', (
        SELECT coalesce(json_agg(json_build_array(t.schedule_id, t.fire_at)), '[]')
        FROM asked, json_to_recordset(a->'times') AS t (schedule_id uuid, fire_at bigint)
        -- One by one: a plan that was made for an empty table would join, and read all fires.
        WHERE (SELECT f.job_id FROM public._jobs_fires f
               WHERE f.schedule_id = t.schedule_id AND f.fire_at = public._jobs_time(t.fire_at)) IS NOT NULL),
    'live', (
        SELECT coalesce(json_object_agg(l.line,
            -- One condition for each index.
            (SELECT count(*) FROM public._jobs j WHERE j.line = l.line AND j.line IS NOT NULL
             AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested'))
            + (SELECT count(*) FROM (SELECT FROM public._jobs j WHERE j.line = l.line AND j.line IS NOT NULL
               AND j.status = 'blocked' LIMIT 2) b)), '{}')
        FROM asked, json_array_elements_text(a->'lines') AS l (line))
)::text;

-- ════ schedules_write_on_conn ════

-- Write schedules that are locked, or new; their fires; and the audit. The jobs of the fires learn where they come from.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
gone AS (
    DELETE FROM public._jobs_schedules
    WHERE id = ANY (ARRAY(SELECT value::uuid FROM asked, json_array_elements_text(a->'gone')))
),
given AS MATERIALIZED (
    SELECT r.* FROM asked, json_to_recordset(a->'rows') AS r (
        is_new bool, id uuid, name text, scope text, scope_id text, topic text, definition json, revision int, owner text,
        absent bool, paused_at bigint, resumed_at bigint, paused_by text, pause_reason text, upto bigint,
        next_run_at bigint, last_run_at bigint, last_job_id uuid, zone_data text, created bigint, updated bigint)
),
written AS MATERIALIZED (
    SELECT is_new, id, name, scope, scope_id, topic, definition, revision, owner, absent,
           public._jobs_time(paused_at) AS paused_at, public._jobs_time(resumed_at) AS resumed_at, paused_by,
           pause_reason, public._jobs_time(upto) AS upto, public._jobs_time(next_run_at) AS next_run_at,
           public._jobs_time(last_run_at) AS last_run_at, last_job_id, zone_data,
           public._jobs_time(created) AS created, public._jobs_time(updated) AS updated
    FROM given
),
new AS (
    INSERT INTO public._jobs_schedules (id, name, scope, scope_id, topic, definition, revision, owner, absent, paused_at, resumed_at, paused_by, pause_reason, upto, next_run_at, last_run_at, last_job_id, zone_data, created, updated)
    SELECT id, name, scope, scope_id, topic, definition, revision, owner, absent, paused_at, resumed_at, paused_by, pause_reason, upto, next_run_at, last_run_at, last_job_id, zone_data, created, updated FROM written WHERE is_new
    ON CONFLICT DO NOTHING
    RETURNING 1
),
changed AS (
    UPDATE public._jobs_schedules s SET (id, name, scope, scope_id, topic, definition, revision, owner, absent, paused_at, resumed_at, paused_by, pause_reason, upto, next_run_at, last_run_at, last_job_id, zone_data, created, updated) = ROW (
        w.id, w.name, w.scope, w.scope_id, w.topic, w.definition, w.revision, w.owner, w.absent, w.paused_at, w.resumed_at,
        w.paused_by, w.pause_reason, w.upto, w.next_run_at, w.last_run_at, w.last_job_id, w.zone_data, w.created, w.updated)
    FROM written w WHERE s.id = w.id AND NOT w.is_new
),
fires AS MATERIALIZED (
    SELECT f.schedule_id, public._jobs_time(f.fire_at) AS fire_at, public._jobs_time(f.at) AS at, f.kind, f.job_id,
           f.reason, f.detail
    FROM asked, json_to_recordset(a->'fires') AS f (
        schedule_id uuid, fire_at bigint, at bigint, kind text, job_id uuid, reason text, detail text)
),
-- A time that made no job may get one later, by a backfill. One that has a job keeps it.
fired AS (
    INSERT INTO public._jobs_fires AS f (schedule_id, fire_at, at, kind, job_id, reason, detail)
    SELECT schedule_id, fire_at, at, kind, job_id, reason, detail FROM fires
    ON CONFLICT (schedule_id, fire_at) DO UPDATE
    SET at = excluded.at, kind = excluded.kind, job_id = excluded.job_id, reason = excluded.reason, detail = excluded.detail
    WHERE f.job_id IS NULL
    RETURNING f.job_id
),
-- By primary keys: the planner must not read the whole table.
marked AS (
    UPDATE public._jobs j SET schedule_id = f.schedule_id, fire_at = f.fire_at
    FROM fires f WHERE j.id = ANY (ARRAY(SELECT job_id FROM fires WHERE job_id IS NOT NULL)) AND j.id = f.job_id
),
audited AS (
    INSERT INTO public._jobs_audit (at, by, action, topic, reason, data)
    SELECT clock_timestamp(), e.by, e.action, e.topic, e.reason, e.data
    FROM asked, json_to_recordset(a->'entries') AS e (by text, action text, topic text, reason text, data json)
)
SELECT json_build_array((SELECT count(*) FROM new), (SELECT count(job_id) FROM fired))::text;

-- ════ series ════

-- Rollups of a span ($1) and a topic ($2; '' is all), and the notes that are not folded yet. It is one statement, so that
-- nothing is missed or counted twice. Notes are read up to a bound: there are many only if none was folded for long.
WITH notes AS MATERIALIZED (
    (SELECT * FROM public._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND true
       AND runs IS NULL LIMIT 20000)
    UNION ALL
    (SELECT * FROM public._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND true
       AND runs IS NOT NULL LIMIT 1000)
),
-- The counts of each topic and minute in `notes`, and how many durations are in each bucket (core/sketch.py). A requeue's
-- negative note lowers the totals only: here it counts as requeued.
timed AS MATERIALIZED (SELECT *, floor(date_part('epoch', at) / 60)::bigint AS minute FROM notes),
counted AS (
    SELECT topic, minute,
           ARRAY[sum(enqueued), sum(completed), sum(greatest(failed, 0)), sum(greatest(expired, 0)),
                 sum(greatest(cancelled, 0)), sum(retried), sum(lost),
                 -sum(least(failed, 0) + least(expired, 0) + least(cancelled, 0)), sum(deleted)]::bigint[] AS counts
    FROM timed GROUP BY topic, minute
),
waited AS (
    SELECT topic, minute, array_agg(bucket) AS waits, array_agg(n) AS waits_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.waits) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
ran AS (
    SELECT topic, minute, array_agg(bucket) AS runs, array_agg(n) AS runs_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.runs) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
minutes AS (
    SELECT topic, minute, counts, waits, waits_n, runs, runs_n
    FROM counted LEFT JOIN waited USING (topic, minute) LEFT JOIN ran USING (topic, minute)
)
SELECT date_part('epoch', at)::bigint, ARRAY[enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted],
       waits AS waits_packed, runs AS runs_packed, NULL::int[], NULL::int[], NULL::int[], NULL::int[]
FROM public._jobs_rollups
WHERE span = $1::int AND topic = $2::text AND at >= $3::timestamptz AND at < $4::timestamptz
UNION ALL
SELECT minute * 60, counts, NULL, NULL, waits, waits_n, runs, runs_n FROM minutes;

-- ════ series_of_topic ════

-- Rollups of a span ($1) and a topic ($2; '' is all), and the notes that are not folded yet. It is one statement, so that
-- nothing is missed or counted twice. Notes are read up to a bound: there are many only if none was folded for long.
WITH notes AS MATERIALIZED (
    (SELECT * FROM public._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND topic = $2::text
       AND runs IS NULL LIMIT 20000)
    UNION ALL
    (SELECT * FROM public._jobs_counts WHERE at >= $3::timestamptz AND at < $4::timestamptz AND topic = $2::text
       AND runs IS NOT NULL LIMIT 1000)
),
-- The counts of each topic and minute in `notes`, and how many durations are in each bucket (core/sketch.py). A requeue's
-- negative note lowers the totals only: here it counts as requeued.
timed AS MATERIALIZED (SELECT *, floor(date_part('epoch', at) / 60)::bigint AS minute FROM notes),
counted AS (
    SELECT topic, minute,
           ARRAY[sum(enqueued), sum(completed), sum(greatest(failed, 0)), sum(greatest(expired, 0)),
                 sum(greatest(cancelled, 0)), sum(retried), sum(lost),
                 -sum(least(failed, 0) + least(expired, 0) + least(cancelled, 0)), sum(deleted)]::bigint[] AS counts
    FROM timed GROUP BY topic, minute
),
waited AS (
    SELECT topic, minute, array_agg(bucket) AS waits, array_agg(n) AS waits_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.waits) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
ran AS (
    SELECT topic, minute, array_agg(bucket) AS runs, array_agg(n) AS runs_n
    FROM (SELECT topic, minute, ceil(ln(least(greatest(seconds, 1e-06), 1000000000.0)) / ln(1.1::float8))::int AS bucket, count(*)::int AS n
          FROM timed CROSS JOIN unnest(timed.runs) AS seconds GROUP BY 1, 2, 3) b
    GROUP BY topic, minute
),
minutes AS (
    SELECT topic, minute, counts, waits, waits_n, runs, runs_n
    FROM counted LEFT JOIN waited USING (topic, minute) LEFT JOIN ran USING (topic, minute)
)
SELECT date_part('epoch', at)::bigint, ARRAY[enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted],
       waits AS waits_packed, runs AS runs_packed, NULL::int[], NULL::int[], NULL::int[], NULL::int[]
FROM public._jobs_rollups
WHERE span = $1::int AND topic = $2::text AND at >= $3::timestamptz AND at < $4::timestamptz
UNION ALL
SELECT minute * 60, counts, NULL, NULL, waits, waits_n, runs, runs_n FROM minutes;

-- ════ set_backoff ════

-- Rows that don't change are neither written nor locked. A topic without a row needs none if it has no table of its own.
INSERT INTO public._jobs_topics AS kept (topic, backoff)
SELECT w.topic, w.backoff
FROM (SELECT s.topic, s.backoff::float8[] AS backoff FROM unnest($1::text[], $2::text[]) AS s (topic, backoff)) w
LEFT JOIN public._jobs_topics t ON t.topic = w.topic
WHERE t.backoff IS DISTINCT FROM w.backoff
ORDER BY w.topic  -- two workers that start at once lock the rows in the same order
ON CONFLICT (topic) DO UPDATE SET backoff = excluded.backoff
WHERE kept.backoff IS DISTINCT FROM excluded.backoff  -- another worker may have been first;

-- ════ set_deadlines ════

-- $4: the number of the callback that is meant. Of waits, those that are open.
UPDATE public._jobs_steps s SET deadline = public._jobs_time(d.at)
FROM unnest($2::text[], $3::bigint[]) AS d (name, at)
WHERE s.job_id = $1::uuid AND s.name = d.name AND (s.state = 'running' OR s.name LIKE '@callback:%' AND s.n = $4::int);

-- ════ set_limited ════

-- Which topics ($1) have limits ($2). A claim that was decided before this does nothing.
WITH turned AS (UPDATE public._jobs_limits SET epoch = epoch + 1 RETURNING 1)
INSERT INTO public._jobs_topics AS t (topic, limited)
SELECT s.topic, s.limited FROM unnest($1::text[], $2::bool[]) AS s (topic, limited), turned ORDER BY s.topic
ON CONFLICT (topic) DO UPDATE SET limited = excluded.limited WHERE t.limited <> excluded.limited;

-- ════ set_shares ════

-- The shares ($3) of jobs ($1) that no worker holds, and that have not changed since ($2).
WITH locked AS MATERIALIZED (
    SELECT h.tid, s.share FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS s (id, updated, share) CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM public._jobs j
        WHERE j.id = s.id AND j.updated = s.updated AND j.locked_until IS NULL
          AND j.status IN ('pending', 'blocked', 'waiting') AND j.share IS DISTINCT FROM s.share
        FOR UPDATE SKIP LOCKED
    ) h
)
UPDATE public._jobs j SET share = l.share FROM locked l WHERE j.ctid = l.tid;

-- ════ settle ════

WITH
-- Sorted by id before rows are locked, so that two batches can't deadlock. `charged` is the new number of retries.
s AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::float8[], $5::int[], $6::text[],
        $7::text[], $8::float8[], $9::text[], $10::text[], $12::text[],
        $13::text[], $14::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
-- By primary key, one by one. Status, version and worker are checked outside: here they would let the planner choose a
-- partial index.
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Read when the first row has been checked, after all locks.
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
-- `becomes`: a job that has got more signals than its run has seen does not wait.
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND locked_by = coalesce($11::text, locked_by)
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
moved AS (
    UPDATE public._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
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
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
            'started_at', public._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO public._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO public._jobs_counts (
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
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
)
SELECT applied, EXISTS (SELECT FROM ended) AS ended, EXISTS (SELECT FROM moved WHERE woken) AS woken FROM settle_summary;

-- ════ settle_and_claim ════

WITH
s AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::float8[], $5::int[], $6::text[],
        $7::text[], $8::float8[], $9::text[], $10::text[], $12::text[],
        $13::text[], $14::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND locked_by = coalesce($11::text, locked_by)
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
moved AS (
    UPDATE public._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
        waits_for = CASE ok.becomes WHEN 'waiting' THEN ok.waits_for END,
        retries = coalesce(ok.charged, j.retries),
        last_error = coalesce(ok.error, j.last_error),
        fingerprint = ok.fingerprint,
        cancel_reason = CASE WHEN ok.goal = 'cancelled' THEN coalesce(j.cancel_reason, ok.reason)
                             ELSE j.cancel_reason END,
        started_at = CASE WHEN ok.ran IS NULL THEN j.started_at
                          ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END,
        finished_at = CASE WHEN ok.goal IN ('failed', 'cancelled') THEN ok.now END,
        expires_at = CASE WHEN ok.goal NOT IN ('failed', 'cancelled') AND (ok.ran IS NOT NULL OR j.started_at IS NOT NULL)
                          THEN NULL ELSE j.expires_at END,
        locked_by = NULL, locked_until = NULL, updated = ok.now,
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
            'started_at', public._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO public._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO public._jobs_counts (
        at, topic, completed, executions, execution_us, failed, cancelled, retried, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*) FILTER (WHERE status IS NULL),
           count(took) FILTER (WHERE status IS NULL),
           coalesce(extract(epoch FROM sum(took) FILTER (WHERE status IS NULL)) * 1000000, 0),
           count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'cancelled'),
           count(*) FILTER (WHERE status = 'pending'),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled'),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled')
    FROM (SELECT topic, NULL AS status, waited, took FROM archived UNION ALL
          SELECT topic, status, waited, took FROM moved WHERE status IN ('failed', 'cancelled') OR retried) ended
    GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
),
meter AS MATERIALIZED (SELECT (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) AS claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due),
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(
        string_to_array($15::text, ' '), string_to_array($16::text, ' ')::int[]
    ) WITH ORDINALITY AS l (topic, template_version, n)
    WHERE (SELECT count(*) FROM held) >= 0 AND l.topic <> ALL (ARRAY(
        SELECT topic FROM public._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
        UNION ALL SELECT topic FROM public._jobs_topics WHERE limited))
      AND (SELECT clock_timestamp()) <= coalesce($27::timestamptz, 'infinity')
),
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest(
        $17::int[], $18::timestamptz[], $19::uuid[],
        $20::int[], $21::timestamptz[]
    ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $23::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $23::int
),
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality($17::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, $23::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
locked AS MATERIALIZED (
    SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
        FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
small AS MATERIALIZED (
    SELECT coalesce(sum(size), 0) <= coalesce($28::bigint, 9223372036854775807) AS yes FROM locked
),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < $28::bigint
),
claim_clock AS MATERIALIZED (
    SELECT now, now + $25::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
claimed AS (
    UPDATE public._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = $24::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $26::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic, j.template_version, j.payload, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.cancel_requested_at, j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped
),
claim_summary AS (
    SELECT ARRAY[(contended OR EXISTS (SELECT FROM moved WHERE woken))::int, (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) - meter.claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due,
                 (EXISTS (SELECT FROM public._jobs_ends) OR EXISTS (SELECT FROM ended))::int,
                 (EXISTS (SELECT FROM public._jobs_topics
                          WHERE limited AND topic = ANY (string_to_array($15::text, ' '))))::int] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < $23::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM public._jobs
                WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < timestamptz '9999-12-31 23:59:59.999999+00'
                  AND run_at > coalesce($22::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
SELECT seen, next_due, now, until, applied, NULL::uuid, NULL::text, NULL::int, NULL::json, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::float8, NULL::json, NULL::text, NULL::int, NULL::int, NULL::int, NULL::float8, NULL::int, NULL::timestamptz, NULL::text, NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::timestamptz, NULL::int FROM settle_summary CROSS JOIN claim_summary
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j;

-- ════ settle_mixed ════

WITH
-- Sorted by id before rows are locked, so that two batches can't deadlock. `charged` is the new number of retries.
s AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::float8[], $5::int[], $6::text[],
        $7::text[], $8::float8[], $9::text[], $10::text[], $12::text[],
        $13::text[], $14::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
-- By primary key, one by one. Status, version and worker are checked outside: here they would let the planner choose a
-- partial index.
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Read when the first row has been checked, after all locks.
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
-- `becomes`: a job that has got more signals than its run has seen does not wait.
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND EXISTS (SELECT FROM unnest($1::uuid[], $11::text[]) AS asked (id, worker) WHERE asked.id = held.id AND held.locked_by = coalesce(asked.worker, held.locked_by))
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
moved AS (
    UPDATE public._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
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
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
            'started_at', public._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO public._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO public._jobs_counts (
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
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
)
SELECT applied, EXISTS (SELECT FROM ended) AS ended, EXISTS (SELECT FROM moved WHERE woken) AS woken FROM settle_summary;

-- ════ settle_mixed_and_claim ════

WITH
s AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::uuid[], $2::int[], $3::text[], $4::float8[], $5::int[], $6::text[],
        $7::text[], $8::float8[], $9::text[], $10::text[], $12::text[],
        $13::text[], $14::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND EXISTS (SELECT FROM unnest($1::uuid[], $11::text[]) AS asked (id, worker) WHERE asked.id = held.id AND held.locked_by = coalesce(asked.worker, held.locked_by))
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
moved AS (
    UPDATE public._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
        waits_for = CASE ok.becomes WHEN 'waiting' THEN ok.waits_for END,
        retries = coalesce(ok.charged, j.retries),
        last_error = coalesce(ok.error, j.last_error),
        fingerprint = ok.fingerprint,
        cancel_reason = CASE WHEN ok.goal = 'cancelled' THEN coalesce(j.cancel_reason, ok.reason)
                             ELSE j.cancel_reason END,
        started_at = CASE WHEN ok.ran IS NULL THEN j.started_at
                          ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END,
        finished_at = CASE WHEN ok.goal IN ('failed', 'cancelled') THEN ok.now END,
        expires_at = CASE WHEN ok.goal NOT IN ('failed', 'cancelled') AND (ok.ran IS NOT NULL OR j.started_at IS NOT NULL)
                          THEN NULL ELSE j.expires_at END,
        locked_by = NULL, locked_until = NULL, updated = ok.now,
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
            'started_at', public._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO public._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO public._jobs_counts (
        at, topic, completed, executions, execution_us, failed, cancelled, retried, waits, runs)
    SELECT (SELECT now FROM settle_clock), topic, count(*) FILTER (WHERE status IS NULL),
           count(took) FILTER (WHERE status IS NULL),
           coalesce(extract(epoch FROM sum(took) FILTER (WHERE status IS NULL)) * 1000000, 0),
           count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'cancelled'),
           count(*) FILTER (WHERE status = 'pending'),
           array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled'),
           array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL AND status IS DISTINCT FROM 'cancelled')
    FROM (SELECT topic, NULL AS status, waited, took FROM archived UNION ALL
          SELECT topic, status, waited, took FROM moved WHERE status IN ('failed', 'cancelled') OR retried) ended
    GROUP BY topic
),
settle_summary AS (
    SELECT CASE WHEN count(*) < cardinality($1::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
),
meter AS MATERIALIZED (SELECT (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) AS claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due),
lane AS MATERIALIZED (
    SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
    FROM meter CROSS JOIN unnest(
        string_to_array($15::text, ' '), string_to_array($16::text, ' ')::int[]
    ) WITH ORDINALITY AS l (topic, template_version, n)
    WHERE (SELECT count(*) FROM held) >= 0 AND l.topic <> ALL (ARRAY(
        SELECT topic FROM public._jobs_topics
        WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
        UNION ALL SELECT topic FROM public._jobs_topics WHERE limited))
      AND (SELECT clock_timestamp()) <= coalesce($27::timestamptz, 'infinity')
),
part AS MATERIALIZED (
    SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
           coalesce(p.after_run_at, '-infinity') AS after_run_at,
           coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
           coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
    FROM unnest(
        $17::int[], $18::timestamptz[], $19::uuid[],
        $20::int[], $21::timestamptz[]
    ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
),
top AS MATERIALIZED (
    SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
        SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT $23::int
    ) h
    ORDER BY h.rank, h.run_at, h.id
    LIMIT $23::int
),
alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality($17::int[]) = 1 AS yes),
take AS MATERIALIZED (
    SELECT n AS lane, 1 AS part, $23::int AS most FROM lane WHERE (SELECT yes FROM alone)
    UNION ALL
    SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
),
locked AS MATERIALIZED (
    SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
        FROM public._jobs j
        WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
          AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
          AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
        ORDER BY -j.priority, j.run_at, j.id
        LIMIT t.most
        FOR UPDATE SKIP LOCKED
    ) h
),
small AS MATERIALIZED (
    SELECT coalesce(sum(size), 0) <= coalesce($28::bigint, 9223372036854775807) AS yes FROM locked
),
picked AS MATERIALIZED (
    SELECT tid FROM locked WHERE (SELECT yes FROM small)
    UNION ALL
    SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                     WHERE NOT (SELECT yes FROM small)) sized
    WHERE before < $28::bigint
),
claim_clock AS MATERIALIZED (
    SELECT now, now + $25::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
),
claimed AS (
    UPDATE public._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = $24::text,
        locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $26::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
    RETURNING j.id, j.topic, j.template_version, j.payload, j.priority, j.run_at, j.expires_at, j.key, j.if_live, j.scope, j.scope_id, j.tags, j.trace, j.step, j.progress, j.result, j.last_error, j.retries, j.max_retries, j.crashes, j.timeout, j.version, j.cancel_requested_at, j.cancel_reason, j.flow_id, j.schedule_id, j.fire_at, j.created, 1 + j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped
),
claim_summary AS (
    SELECT ARRAY[(contended OR EXISTS (SELECT FROM moved WHERE woken))::int, (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) - meter.claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due,
                 (EXISTS (SELECT FROM public._jobs_ends) OR EXISTS (SELECT FROM ended))::int,
                 (EXISTS (SELECT FROM public._jobs_topics
                          WHERE limited AND topic = ANY (string_to_array($15::text, ' '))))::int] AS seen, next_due, now, until
    FROM meter CROSS JOIN (
        SELECT CASE WHEN (SELECT count(*) FROM claimed) < $23::int
                    THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
               (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM public._jobs
                WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < timestamptz '9999-12-31 23:59:59.999999+00'
                  AND run_at > coalesce($22::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
               now, until
        FROM claim_clock OFFSET 0
    ) summary
)
SELECT seen, next_due, now, until, applied, NULL::uuid, NULL::text, NULL::int, NULL::json, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::text, NULL::text, NULL::float8, NULL::json, NULL::text, NULL::int, NULL::int, NULL::int, NULL::float8, NULL::int, NULL::timestamptz, NULL::text, NULL::uuid, NULL::uuid, NULL::timestamptz, NULL::timestamptz, NULL::int FROM settle_summary CROSS JOIN claim_summary
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j;

-- ════ settle_on_conn ════

-- Settle on a caller's connection. One JSON text has all parameters: any driver can pass that.
WITH given AS MATERIALIZED (SELECT $1::text::jsonb AS columns),
-- Sorted by id before rows are locked, so that two batches can't deadlock. `charged` is the new number of retries.
s AS MATERIALIZED (
    SELECT * FROM unnest(
        ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 0) AS e (value))::uuid[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 1) AS e (value))::int[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 2) AS e (value))::text[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 3) AS e (value))::float8[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 4) AS e (value))::int[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 5) AS e (value))::text[],
        ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 6) AS e (value))::text[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 7) AS e (value))::float8[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 8) AS e (value))::text[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 9) AS e (value))::text[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 11) AS e (value))::text[],
        ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 12) AS e (value))::text[], ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 13) AS e (value))::int[]
    ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
    ORDER BY id
),
-- By primary key, one by one. Status, version and worker are checked outside: here they would let the planner choose a
-- partial index.
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
        FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
-- Read when the first row has been checked, after all locks.
settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
-- `becomes`: a job that has got more signals than its run has seen does not wait.
ok AS MATERIALIZED (
    SELECT *, (SELECT now FROM settle_clock) AS now,
           CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
    FROM held
    WHERE version = run AND locked_by = coalesce((SELECT given.columns ->> 10 FROM given)::text, locked_by)
      AND (status = 'processing' AND goal <> 'cancel_requested'
           OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
),
gone AS (
    DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
),
done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
archived AS (
    INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
    SELECT (SELECT now FROM settle_clock),
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
    ON CONFLICT (id) DO NOTHING
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
),
moved AS (
    UPDATE public._jobs j SET
        status = ok.becomes,
        ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
        run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                      WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                      THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
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
        history_dropped = j.history_dropped + public._jobs_overflow(j.history),
        history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
            'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
            'started_at', public._jobs_us(
                CASE WHEN ok.ran IS NULL THEN j.started_at
                     ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
    RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
              j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
              j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
),
ended AS (
    INSERT INTO public._jobs_ends (line)
    SELECT line FROM gone WHERE line IS NOT NULL UNION
    SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
    RETURNING 1
),
counted AS (
    INSERT INTO public._jobs_counts (
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
    SELECT CASE WHEN count(*) < cardinality(ARRAY(SELECT value FROM given, jsonb_array_elements_text(given.columns -> 0) AS e (value))::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
    FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
)
SELECT CASE WHEN applied IS NULL THEN 'applied' ELSE 'refused' END FROM settle_summary;

-- ════ shielded ════

-- Which of these jobs a cancel timeout must leave alone. They are locked; this is a statement of its own, because one that
-- waited for the lock would not see a step that began meanwhile.
SELECT j.id FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, version, locked_until FROM public._jobs WHERE id = asked.id
) j
WHERE j.locked_until >= (SELECT clock_timestamp()) AND EXISTS (SELECT FROM public._jobs_steps s WHERE s.job_id >= j.id AND s.job_id <= j.id AND s.state = 'running' AND NOT s.cancelable AND s.version = j.version);

-- ════ silence ════

-- If the client falls silent in this transaction, the server ends it and frees its locks.
SELECT set_config('idle_in_transaction_session_timeout', '10s', true);

-- ════ standing ════

-- By ranges: see read.sql.
SELECT j.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, status, version, locked_by, history FROM public._jobs_all
    WHERE id >= asked.id AND id <= asked.id ORDER BY id LIMIT 2
) j;

-- ════ start_marks ════

-- heartbeat.sql for start marks: runs of one version and one worker, whose leases stay as they are. It costs a quarter of
-- heartbeat, because the UPDATE has the guard itself: it waits for a row's lock, then checks the row again. No index has
-- started_at.
UPDATE public._jobs SET started_at = coalesce(started_at, clock_timestamp())
WHERE id = ANY ($1::uuid[]) AND version = $2::int AND locked_by = $3::text AND status = 'processing'
RETURNING id;

-- ════ stats ════

-- How many jobs have which status, and how jobs have ended, in one snapshot. Each branch reads its own index, up to a bound
-- ($1). The answer names the branch, so that a caller sees which bound was reached.
-- `waited`: for how many seconds the oldest job that was counted has been ready: since run_at or its creation, whichever
-- came later.
WITH counted AS MATERIALIZED (
    SELECT topic, count(*) AS jobs, min(run_at) AS oldest
    FROM (SELECT j.topic, j.run_at FROM public._jobs j
          -- Jobs that are ready for their last run, to undo what they have done. There are few of these.
          WHERE j.ready  AND j.id NOT IN (
              SELECT c.id FROM public._jobs c WHERE c.status = 'cancel_requested' AND c.locked_until IS NULL)
          LIMIT $1::int) s GROUP BY topic
)
-- The index doesn't have `created`. It matters only if a client gave a run_at in the past: then the rows are read.
SELECT 'ready' AS branch, c.topic, 'pending' AS status, c.jobs AS n,
       extract(epoch FROM greatest((SELECT clock_timestamp()) - CASE WHEN (
           SELECT j.created FROM public._jobs j WHERE j.ready AND j.topic = c.topic AND j.run_at = c.oldest LIMIT 1
       ) <= c.oldest THEN c.oldest ELSE (
           SELECT min(greatest(s.run_at, s.created)) FROM (
               SELECT j.run_at, j.created FROM public._jobs j WHERE j.ready AND j.topic = c.topic LIMIT $1::int) s
       ) END, interval '0'))::float8 AS waited, NULL::bigint[] AS ended
FROM counted c
UNION ALL
SELECT 'due', topic, 'pending', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'pending' AND NOT j.ready ORDER BY j.run_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'lease', topic, status, count(*), NULL, NULL
FROM (SELECT j.topic, j.status FROM public._jobs j WHERE j.locked_until IS NOT NULL ORDER BY j.locked_until
      LIMIT $1::int) s
GROUP BY topic, status
UNION ALL  -- waiting jobs that are being cancelled have no lease
SELECT 'cancelling', topic, 'cancel_requested', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'cancel_requested' AND j.locked_until IS NULL
      ORDER BY j.cancel_requested_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'waiting', topic, 'waiting', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'waiting' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT 'blocked', topic, 'blocked', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'blocked' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT NULL, topic, NULL, NULL, NULL,
       ARRAY[completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
             requeued_expired, requeued_cancelled]
FROM (SELECT * FROM public._jobs_totals j WHERE true  ORDER BY topic LIMIT $2::int) s
UNION ALL  -- notes that are not folded yet, added as in fold_counts.sql
SELECT NULL, coalesce(topic, ''), NULL, NULL, NULL,
       ARRAY[sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
             sum(greatest(execution_us, 0)), sum(retried), sum(lost), -sum(least(failed, 0)), -sum(least(expired, 0)),
             -sum(least(cancelled, 0))]::bigint[]
FROM public._jobs_counts j WHERE enqueued = 0 AND deleted = 0  GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0;

-- ════ stats_of_topic ════

-- How many jobs have which status, and how jobs have ended, in one snapshot. Each branch reads its own index, up to a bound
-- ($1). The answer names the branch, so that a caller sees which bound was reached.
-- `waited`: for how many seconds the oldest job that was counted has been ready: since run_at or its creation, whichever
-- came later.
WITH counted AS MATERIALIZED (
    SELECT topic, count(*) AS jobs, min(run_at) AS oldest
    FROM (SELECT j.topic, j.run_at FROM public._jobs j
          -- Jobs that are ready for their last run, to undo what they have done. There are few of these.
          WHERE j.ready AND j.topic = $3::text AND j.id NOT IN (
              SELECT c.id FROM public._jobs c WHERE c.status = 'cancel_requested' AND c.locked_until IS NULL)
          LIMIT $1::int) s GROUP BY topic
)
-- The index doesn't have `created`. It matters only if a client gave a run_at in the past: then the rows are read.
SELECT 'ready' AS branch, c.topic, 'pending' AS status, c.jobs AS n,
       extract(epoch FROM greatest((SELECT clock_timestamp()) - CASE WHEN (
           SELECT j.created FROM public._jobs j WHERE j.ready AND j.topic = c.topic AND j.run_at = c.oldest LIMIT 1
       ) <= c.oldest THEN c.oldest ELSE (
           SELECT min(greatest(s.run_at, s.created)) FROM (
               SELECT j.run_at, j.created FROM public._jobs j WHERE j.ready AND j.topic = c.topic LIMIT $1::int) s
       ) END, interval '0'))::float8 AS waited, NULL::bigint[] AS ended
FROM counted c
UNION ALL
SELECT 'due', topic, 'pending', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'pending' AND NOT j.ready ORDER BY j.run_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'lease', topic, status, count(*), NULL, NULL
FROM (SELECT j.topic, j.status FROM public._jobs j WHERE j.locked_until IS NOT NULL ORDER BY j.locked_until
      LIMIT $1::int) s
GROUP BY topic, status
UNION ALL  -- waiting jobs that are being cancelled have no lease
SELECT 'cancelling', topic, 'cancel_requested', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'cancel_requested' AND j.locked_until IS NULL
      ORDER BY j.cancel_requested_at LIMIT $1::int) s
GROUP BY topic
UNION ALL
SELECT 'waiting', topic, 'waiting', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'waiting' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT 'blocked', topic, 'blocked', count(*), NULL, NULL
FROM (SELECT j.topic FROM public._jobs j WHERE j.status = 'blocked' ORDER BY j.id LIMIT $1::int) s GROUP BY topic
UNION ALL
SELECT NULL, topic, NULL, NULL, NULL,
       ARRAY[completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed,
             requeued_expired, requeued_cancelled]
FROM (SELECT * FROM public._jobs_totals j WHERE true AND j.topic = $3::text ORDER BY topic LIMIT $2::int) s
UNION ALL  -- notes that are not folded yet, added as in fold_counts.sql
SELECT NULL, coalesce(topic, ''), NULL, NULL, NULL,
       ARRAY[sum(completed), sum(failed), sum(expired), sum(cancelled), sum(executions),
             sum(greatest(execution_us, 0)), sum(retried), sum(lost), -sum(least(failed, 0)), -sum(least(expired, 0)),
             -sum(least(cancelled, 0))]::bigint[]
FROM public._jobs_counts j WHERE enqueued = 0 AND deleted = 0 AND j.topic = $3::text GROUP BY GROUPING SETS ((topic), ()) HAVING count(*) > 0;

-- ════ step_owners ════

-- Of steps and of signals.
SELECT s.job_id, EXISTS (SELECT 1 FROM public._jobs j WHERE j.id = s.job_id)
                 OR EXISTS (SELECT 1 FROM public._jobs_archive a WHERE a.id = s.job_id)
FROM (
    (SELECT job_id FROM public._jobs_steps WHERE job_id < $1::uuid ORDER BY job_id DESC LIMIT $2::int)
    UNION
    (SELECT job_id FROM public._jobs_signals WHERE job_id < $1::uuid ORDER BY job_id DESC LIMIT $2::int)
    ORDER BY job_id DESC LIMIT $2::int
) s
ORDER BY s.job_id DESC;

-- ════ step_places ════

-- The limit, which no job reaches, makes the planner take the index for each job.
SELECT s.* FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT job_id, name, n, position, state FROM public._jobs_steps WHERE job_id >= asked.id AND job_id <= asked.id
    ORDER BY job_id, name, n LIMIT 100000
) s
ORDER BY s.job_id, s.position, s.name, s.n;

-- ════ steps ════

-- Each job's as a range: see read.sql.
SELECT s.job_id, s.name, s.n, s.position, s.function, s.state, s.result, s.error, s.retries, s.cancelable, s.version,
       s.started_at, s.finished_at, s.deadline
FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT * FROM public._jobs_steps s WHERE s.job_id >= asked.id AND s.job_id <= asked.id) s
ORDER BY s.job_id, s.position, s.name, s.n;

-- ════ stored_rows ════

-- Newest first, along the primary key; one snapshot, so that a job that is being completed is not seen twice.
SELECT j.id, j.topic, j.status, j.ready, j.version, j.retries, j.max_retries, j.key, j.if_live, j.scope, j.scope_id, j.flow_id, j.waits_for, j.locked_by, j.locked_until, j.finished_at, j.history, j.history_dropped, j.step, EXISTS (SELECT 1 FROM public._jobs_archive a WHERE a.id = j.id) AS twice,
       EXISTS (SELECT 1 FROM public._jobs_steps s WHERE s.job_id = j.id) AS has_steps
FROM public._jobs j WHERE j.id < $1::uuid ORDER BY j.id DESC LIMIT $2::int;

-- ════ stored_rows_archived ════

-- Newest first, along the primary key; one snapshot, so that a job that is being completed is not seen twice.
SELECT j.id, j.topic, 'completed', false, j.version, j.retries, j.max_retries, j.key, j.if_live, j.scope, j.scope_id, j.flow_id, NULL, j.locked_by, NULL, j.finished_at, j.history, j.history_dropped, j.step, EXISTS (SELECT 1 FROM public._jobs a WHERE a.id = j.id) AS twice,
       EXISTS (SELECT 1 FROM public._jobs_steps s WHERE s.job_id = j.id) AS has_steps
FROM public._jobs_archive j WHERE j.id < $1::uuid ORDER BY j.id DESC LIMIT $2::int;

-- ════ take_signal ════

-- Does a run have to wait? $1 is a JSON text, see waits.py.
-- It waits for a locked row. The guard is checked outside: see fence.sql. A signal also writes the job's row. So if the
-- UPDATE of that row finds it as our snapshot has it, the snapshot has all signals. Else the statement must be repeated.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_record($1::text::json) AS asked (
        id uuid, run int, worker text, name text, n int, position int, signal text, seconds float8, until timestamptz,
        terms text, fallback text, error text)
),
held AS MATERIALIZED (
    SELECT j.ctid AS tid, j.status, j.version, j.locked_by, coalesce(j.signals, 0) AS signals
    FROM public._jobs j WHERE j.id = (SELECT id FROM asked) FOR NO KEY UPDATE
),
ok AS MATERIALIZED (
    SELECT asked.*, held.tid, clock_timestamp() AS now FROM held CROSS JOIN asked
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status = 'processing'
),
stored AS MATERIALIZED (
    SELECT s.state, s.result, s.deadline FROM ok JOIN public._jobs_steps s
        ON s.job_id = ok.id AND s.name = ok.name AND s.n = ok.n
),
unread AS MATERIALIZED (
    SELECT s.seq, s.data FROM ok CROSS JOIN LATERAL (
        SELECT seq, data FROM public._jobs_signals s
        WHERE s.job_id = ok.id AND s.name = ok.signal AND s.wait IS NULL ORDER BY s.seq LIMIT 1
    ) s
    WHERE NOT EXISTS (SELECT FROM stored WHERE state <> 'running')
),
-- The deadline is that of the first call, also if it is none.
timed AS MATERIALIZED (
    SELECT ok.*, CASE WHEN EXISTS (SELECT FROM stored) THEN (SELECT deadline FROM stored)
                      ELSE coalesce(ok.until, ok.now + ok.seconds * interval '1 second') END AS deadline
    FROM ok WHERE NOT EXISTS (SELECT FROM stored WHERE state <> 'running')
),
decided AS MATERIALIZED (
    SELECT timed.*,
           CASE WHEN EXISTS (SELECT FROM unread) THEN 'succeeded'
                WHEN (deadline > now) IS NOT FALSE THEN 'running'
                WHEN fallback IS NULL THEN 'failed' ELSE 'succeeded' END AS state
    FROM timed
),
marked AS (
    UPDATE public._jobs j SET step = decided.name, updated = decided.now
    FROM decided
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND j.id = decided.id
    RETURNING j.id
),
read AS (
    -- No join: a plan that was made while the table was empty would read all of it.
    UPDATE public._jobs_signals SET wait = (SELECT name FROM asked), wait_n = (SELECT n FROM asked)
    WHERE job_id = (SELECT id FROM marked) AND seq = (SELECT seq FROM unread)
),
written AS (
    INSERT INTO public._jobs_steps AS s (
        job_id, name, n, position, function, state, retries, cancelable, version, started_at, finished_at, result, error,
        deadline)
    SELECT d.id, d.name, d.n, d.position, d.name, d.state, 0, true, d.run, d.now,
           CASE WHEN d.state <> 'running' THEN d.now END,
           CASE WHEN d.state = 'running' THEN d.terms::json
                WHEN EXISTS (SELECT FROM unread) THEN (SELECT data FROM unread)
                WHEN d.state = 'succeeded' THEN d.fallback::json END,
           CASE WHEN d.state = 'failed' THEN d.error END, d.deadline
    FROM marked JOIN decided d ON d.id = marked.id
    ON CONFLICT (job_id, name, n) DO UPDATE SET
        position = excluded.position, state = excluded.state, version = excluded.version,
        finished_at = excluded.finished_at, result = excluded.result, error = excluded.error
    RETURNING s.state, s.result, s.deadline
)
SELECT held.status, held.version, held.locked_by, answer.state IS NOT NULL AS written, held.signals, answer.state,
       answer.result::text, extract(epoch FROM answer.deadline - ok.now)::float8 AS remaining
FROM held LEFT JOIN ok ON true LEFT JOIN (
    SELECT * FROM stored WHERE state <> 'running' UNION ALL SELECT * FROM written
) answer ON true;

-- ════ throttle_lock_on_conn ════

-- Locks the rows of throttled keys, and makes those that are missing. In order: no two can deadlock. The parameter is
-- [[line, seconds], …]. A row stays for the longest window that was asked for. Answers [[line, job, its time, the time now], …].
WITH held AS (
    INSERT INTO public._jobs_throttles AS t (line, at, until)
    SELECT s.line, c.now, c.now + s.seconds * interval '1 second'
    FROM (SELECT e->>0 AS line, (e->>1)::float8 AS seconds FROM json_array_elements($1::text::json) e ORDER BY 1) s,
         (SELECT clock_timestamp() AS now) c
    ON CONFLICT (line) DO UPDATE SET until = greatest(t.until, t.at + (excluded.until - excluded.at))
    RETURNING t.line, t.job_id, t.at, clock_timestamp() AS now
)
SELECT coalesce(json_agg(json_build_array(line, job_id, public._jobs_us(at), public._jobs_us(now))), '[]')::text
FROM held;

-- ════ throttle_write_on_conn ════

-- Notes jobs that were made with throttled keys, whose rows this transaction has locked.
-- The parameter is [[line, job, its time, until], …].
WITH made AS (
    UPDATE public._jobs_throttles t
    SET job_id = (e->>1)::uuid, at = public._jobs_time((e->>2)::bigint), until = public._jobs_time((e->>3)::bigint)
    FROM json_array_elements($1::text::json) e
    WHERE t.line = e->>0
    RETURNING 1
)
SELECT count(*)::text FROM made;

-- ════ uncancelable ════

-- Those of these templates whose jobs can't be cancelled once a run has started.
SELECT id FROM public._jobs_records
WHERE kind = 'template' AND id = ANY ($1::text[]) AND data->'template'->'cancel'->>'supported' = 'false';

-- ════ ungrouped ════

SELECT j.id, j.topic, j.finished_at, CASE WHEN length(j.last_error) > 65550 THEN left(j.last_error, 32768) || '
… left out …
' || right(j.last_error, 32768) ELSE j.last_error END FROM public._jobs j
WHERE j.fingerprint IS NULL AND j.status IN ('failed', 'expired')
ORDER BY j.finished_at DESC
LIMIT $1::int;

-- ════ wait_facts ════

-- What core.moves must know of waits (WaitFacts), of jobs that are locked. A statement of its own, because one that waited
-- for the lock would not see what was written meanwhile.
-- $2, $3: name and number of a callback; NULL: those of the signal that the job waits for, if they have no answer yet. $4: the id of a signal, or NULL.
-- $5: at most so many unread signals are counted. LIMIT 1 in place of EXISTS: for an EXISTS the planner may read the whole table
-- into a hash table.
SELECT j.id, unread.n, known.yes, callback.n > 0, CASE WHEN NOT callback.endless THEN public._jobs_us(callback.until) END,
       undoes.yes, terms.text
FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, waits_for FROM public._jobs WHERE id = asked.id
) j
CROSS JOIN LATERAL (
    SELECT count(*)::int AS n FROM (
        SELECT FROM public._jobs_signals s WHERE s.job_id = j.id AND s.wait IS NULL LIMIT $5::int) u
) unread
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT true FROM public._jobs_signals s
                     WHERE s.job_id = j.id AND s.signal_id = $4::text AND s.signal_id IS NOT NULL LIMIT 1), false) AS yes
) known
CROSS JOIN LATERAL (
    SELECT count(*) AS n, bool_or(s.deadline IS NULL) AS endless, max(s.deadline) AS until FROM public._jobs_steps s
    WHERE s.job_id = j.id AND s.name = coalesce($2::text, '@callback:' || substr(j.waits_for, length('signal:') + 1))
      AND s.n = coalesce($3::int, s.n)
      AND ($3::int IS NOT NULL OR NOT EXISTS (SELECT FROM public._jobs_signals g
                                              WHERE g.job_id = j.id AND g.signal_id = s.name || '#' || s.n))
) callback
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT true FROM public._jobs_steps s
                     WHERE s.job_id = j.id AND s.state = 'succeeded' AND s.name NOT LIKE '@%' LIMIT 1), false) AS yes
) undoes
LEFT JOIN LATERAL (
    SELECT s.result::text AS text FROM public._jobs_steps s
    WHERE s.job_id = j.id AND s.name = '@' || j.waits_for AND s.state = 'running' ORDER BY s.n LIMIT 1
) terms ON true;

-- ════ workers ════

SELECT name, host, pid, topics, concurrency, running, lease, stopping, rowlock, started, seen
FROM public._jobs_workers ORDER BY name;

-- ════ write_moves ════

-- Writes patches (core.moves) for rows that this transaction has locked. Equal patches come once: what 1,000 jobs of a fan-out get
-- is parsed once.
-- $1: [[ids, places, archived, columns, entry], …]. The ids and the places of the rows stand in one text each. `archived`: they are
-- in the archive. `columns`: to set (null: delete the rows). `entry`: for their histories (null: none).
WITH c AS MATERIALIZED (
    SELECT c->>0 AS ids, c->>1 AS places, (c->>2)::bool AS archived, (c->>3)::jsonb AS change, (c->>4)::jsonb AS entry
    FROM json_array_elements($1::text::json) AS c
),
patch AS MATERIALIZED (
    SELECT c.ids, c.places, c.archived, c.change IS NULL AS deletes, c.change ? 'to_end' AS to_end, c.entry,
        c.change ? 'status' AS sets_status, (c.change->>'status')::text AS status,
        c.change ? 'stage' AS sets_stage, (c.change->>'stage')::text AS stage,
        c.change ? 'message' AS sets_message, (c.change->>'message')::text AS message,
        c.change ? 'cancel_reason' AS sets_cancel_reason, (c.change->>'cancel_reason')::text AS cancel_reason,
        c.change ? 'last_error' AS sets_last_error, (c.change->>'last_error')::text AS last_error,
        c.change ? 'fingerprint' AS sets_fingerprint, (c.change->>'fingerprint')::text AS fingerprint,
        c.change ? 'locked_by' AS sets_locked_by, (c.change->>'locked_by')::text AS locked_by,
        c.change ? 'step' AS sets_step, (c.change->>'step')::text AS step,
        c.change ? 'waits_for' AS sets_waits_for, (c.change->>'waits_for')::text AS waits_for,
        c.change ? 'line' AS sets_line, (c.change->>'line')::text AS line,
        c.change ? 'share' AS sets_share, (c.change->>'share')::text AS share,
        c.change ? 'priority' AS sets_priority, (c.change->>'priority')::int AS priority,
        c.change ? 'retries' AS sets_retries, (c.change->>'retries')::int AS retries,
        c.change ? 'crashes' AS sets_crashes, (c.change->>'crashes')::int AS crashes,
        c.change ? 'signals' AS sets_signals, (c.change->>'signals')::int AS signals,
        c.change ? 'ready' AS sets_ready, (c.change->>'ready')::bool AS ready,
        c.change ? 'progress' AS sets_progress, (c.change->>'progress')::float8 AS progress,
        c.change ? 'tags' AS sets_tags, (c.change->>'tags')::jsonb AS tags,
        c.change ? 'payload' AS sets_payload, (c.change->>'payload')::json AS payload,
        c.change ? 'result' AS sets_result, (c.change->>'result')::json AS result,
        c.change ? 'run_at' AS sets_run_at, public._jobs_time((c.change->>'run_at')::bigint) AS run_at,
        c.change ? 'expires_at' AS sets_expires_at, public._jobs_time((c.change->>'expires_at')::bigint) AS expires_at,
        c.change ? 'finished_at' AS sets_finished_at, public._jobs_time((c.change->>'finished_at')::bigint) AS finished_at,
        c.change ? 'cancel_requested_at' AS sets_cancel_requested_at, public._jobs_time((c.change->>'cancel_requested_at')::bigint) AS cancel_requested_at,
        c.change ? 'locked_until' AS sets_locked_until, public._jobs_time((c.change->>'locked_until')::bigint) AS locked_until,
        c.change ? 'updated' AS sets_updated, public._jobs_time((c.change->>'updated')::bigint) AS updated
    FROM c
),
p AS MATERIALIZED (
    SELECT s.id, s.place::tid AS tid, patch.archived, patch.deletes, patch.to_end, patch.entry,
        patch.sets_status, patch.status,
        patch.sets_stage, patch.stage,
        patch.sets_message, patch.message,
        patch.sets_cancel_reason, patch.cancel_reason,
        patch.sets_last_error, patch.last_error,
        patch.sets_fingerprint, patch.fingerprint,
        patch.sets_locked_by, patch.locked_by,
        patch.sets_step, patch.step,
        patch.sets_waits_for, patch.waits_for,
        patch.sets_line, patch.line,
        patch.sets_share, patch.share,
        patch.sets_priority, patch.priority,
        patch.sets_retries, patch.retries,
        patch.sets_crashes, patch.crashes,
        patch.sets_signals, patch.signals,
        patch.sets_ready, patch.ready,
        patch.sets_progress, patch.progress,
        patch.sets_tags, patch.tags,
        patch.sets_payload, patch.payload,
        patch.sets_result, patch.result,
        patch.sets_run_at, patch.run_at,
        patch.sets_expires_at, patch.expires_at,
        patch.sets_finished_at, patch.finished_at,
        patch.sets_cancel_requested_at, patch.cancel_requested_at,
        patch.sets_locked_until, patch.locked_until,
        patch.sets_updated, patch.updated
    FROM patch CROSS JOIN LATERAL unnest(
        string_to_array(patch.ids, ' ')::uuid[], string_to_array(patch.places, ' ')) AS s (id, place)
),
moved AS (
    UPDATE public._jobs j SET
        status = CASE WHEN p.sets_status THEN p.status ELSE j.status END,
        stage = CASE WHEN p.sets_stage THEN p.stage ELSE j.stage END,
        message = CASE WHEN p.sets_message THEN p.message ELSE j.message END,
        cancel_reason = CASE WHEN p.sets_cancel_reason THEN p.cancel_reason ELSE j.cancel_reason END,
        last_error = CASE WHEN p.sets_last_error THEN p.last_error ELSE j.last_error END,
        fingerprint = CASE WHEN p.sets_fingerprint THEN p.fingerprint ELSE j.fingerprint END,
        locked_by = CASE WHEN p.sets_locked_by THEN p.locked_by ELSE j.locked_by END,
        step = CASE WHEN p.sets_step THEN p.step ELSE j.step END,
        waits_for = CASE WHEN p.sets_waits_for THEN p.waits_for ELSE j.waits_for END,
        line = CASE WHEN p.sets_line THEN p.line ELSE j.line END,
        share = CASE WHEN p.sets_share THEN p.share ELSE j.share END,
        priority = CASE WHEN p.sets_priority THEN p.priority ELSE j.priority END,
        retries = CASE WHEN p.sets_retries THEN p.retries ELSE j.retries END,
        crashes = CASE WHEN p.sets_crashes THEN p.crashes ELSE j.crashes END,
        signals = CASE WHEN p.sets_signals THEN p.signals ELSE j.signals END,
        ready = CASE WHEN p.sets_ready THEN p.ready ELSE j.ready END,
        progress = CASE WHEN p.sets_progress THEN p.progress ELSE j.progress END,
        tags = CASE WHEN p.sets_tags THEN p.tags ELSE j.tags END,
        payload = CASE WHEN p.sets_payload THEN p.payload ELSE j.payload END,
        result = CASE WHEN p.sets_result THEN p.result ELSE j.result END,
        run_at = CASE WHEN p.sets_run_at THEN p.run_at ELSE j.run_at END,
        expires_at = CASE WHEN p.sets_expires_at THEN p.expires_at ELSE j.expires_at END,
        finished_at = CASE WHEN p.sets_finished_at THEN p.finished_at ELSE j.finished_at END,
        cancel_requested_at = CASE WHEN p.sets_cancel_requested_at THEN p.cancel_requested_at ELSE j.cancel_requested_at END,
        locked_until = CASE WHEN p.sets_locked_until THEN p.locked_until ELSE j.locked_until END,
        updated = CASE WHEN p.sets_updated THEN p.updated ELSE j.updated END,
        line_seq = CASE WHEN p.to_end THEN nextval('public._jobs_line_seq') ELSE j.line_seq END,
        history_dropped = j.history_dropped + CASE WHEN p.entry IS NULL THEN 0 ELSE public._jobs_overflow(j.history) END,
        history = CASE WHEN p.entry IS NULL THEN j.history ELSE public._jobs_append(j.history, p.entry) END
    FROM p
    -- Not by id: a plan that was made while the table was empty would read the primary key from end to end.
    WHERE NOT p.deletes AND j.ctid = p.tid
    RETURNING j.id
),
gone AS (
    DELETE FROM public._jobs
    WHERE ctid = ANY (ARRAY(SELECT tid FROM p WHERE deletes AND NOT archived)) RETURNING id, key
),
-- Each part of the archive has ctids of its own: IS TRUE keeps `IN` a mere filter.
gone_archived AS (
    DELETE FROM public._jobs_archive
    WHERE ctid = ANY (ARRAY(SELECT tid FROM p WHERE archived)) AND (id IN (SELECT id FROM p WHERE archived)) IS TRUE
    RETURNING id, key
),
-- $11: the lines in which a job has ended, or has come to the end of the line.
ends AS (INSERT INTO public._jobs_ends (line) SELECT DISTINCT line FROM unnest($11::text[]) AS l (line)),
-- A job that is deleted no longer counts. Not one without a key: it may have the id of a pruned job that still counts.
freed AS (
    DELETE FROM public._jobs_once WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE key IS NOT NULL UNION ALL SELECT id FROM gone_archived WHERE key IS NOT NULL))
),
-- $2: what is counted, by topic.
counted AS (
    INSERT INTO public._jobs_counts (at, topic, failed, expired, cancelled, retried, lost, deleted)
    SELECT clock_timestamp(), c.* FROM json_to_recordset($2::text::json) AS c (topic text, failed int, expired int, cancelled int, retried int, lost int, deleted int)
),
-- $3, $4: the groups of failures that jobs leave. In order, and only what is new: others may requeue jobs of the same groups.
seen AS (
    INSERT INTO public._jobs_first_failures AS f (fingerprint, at)
    SELECT fingerprint, public._jobs_time(min(at)) FROM unnest($3::text[], $4::bigint[]) AS k (fingerprint, at)
    GROUP BY fingerprint
    HAVING NOT EXISTS (SELECT FROM public._jobs_first_failures o
                       WHERE o.fingerprint = k.fingerprint AND o.at <= public._jobs_time(min(k.at)))
    ORDER BY fingerprint
    ON CONFLICT (fingerprint) DO UPDATE SET at = least(f.at, excluded.at)
),
-- $5–$10: the lines of the audit: when, by whom, what, why, in which bulk action; and of which jobs.
audited AS (
    INSERT INTO public._jobs_audit (at, by, action, reason, bulk, job_id, topic, data)
    SELECT public._jobs_time($5::bigint), $6::text, $7::text, $8::text, $9::uuid, a.*
    FROM json_to_recordset($10::text::json) AS a (job_id uuid, topic text, data json) ORDER BY a.job_id
)
SELECT (SELECT count(*) FROM moved) + (SELECT count(*) FROM gone) + (SELECT count(*) FROM gone_archived);

-- ════ functions, revision 7 ════

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
CREATE OR REPLACE FUNCTION public._jobs_refuse(field text, code text, problem text, hint text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = field || ': ' || problem, COLUMN = field, DETAIL = code, HINT = hint;
END $$;

CREATE OR REPLACE FUNCTION public._jobs_check_text(value text, field text, most integer, needed boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL AND needed THEN
        PERFORM public._jobs_refuse(field, 'missing', 'must be given');
    ELSIF char_length(value) NOT BETWEEN 1 AND most THEN
        PERFORM public._jobs_refuse(
            field, 'bad_length', format('must be 1 to %s characters, not %s', most, char_length(value)));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION public._jobs_check_topic(topic text, field text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF topic IS NULL THEN
        PERFORM public._jobs_refuse(field, 'missing', 'must be given');
    ELSIF topic = '' THEN
        PERFORM public._jobs_refuse(field, 'empty', 'must not be empty');
    ELSIF char_length(topic) > 128 THEN
        PERFORM public._jobs_refuse(
            field, 'too_long', format('is %s characters, at most 128 are allowed', char_length(topic)));
    ELSIF topic !~ '^[A-Za-z0-9_.:/-]+$' THEN
        PERFORM public._jobs_refuse(
            field, 'bad_characters', format('%L may only hold A-Z a-z 0-9 _ . : / and -', topic));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION public._jobs_check_number(value bigint, field text, low bigint, high bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF value IS NULL OR value NOT BETWEEN low AND high THEN
        PERFORM public._jobs_refuse(
            field, 'out_of_range', format('must be %s to %s, not %s', low, high, coalesce(value::text, 'NULL')));
    END IF;
END $$;

-- Returns the seconds.
CREATE OR REPLACE FUNCTION public._jobs_check_span(value interval, field text, low double precision, high double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    seconds double precision := extract(epoch FROM value);
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN low AND high THEN
        PERFORM public._jobs_refuse(
            field, 'out_of_range',
            format('must be %s to %s seconds, not %s', low, high, coalesce(seconds::text, 'NULL')));
    END IF;
    RETURN seconds;
END $$;

CREATE OR REPLACE FUNCTION public._jobs_check_time(value timestamptz, field text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT isfinite(value) OR extract(year FROM value AT TIME ZONE 'UTC') NOT BETWEEN 1900 AND 9000 THEN
        PERFORM public._jobs_refuse(
            field, 'time_range', format('%s is not between the years 1900 and 9000', value));
    END IF;
END $$;

-- Every write of a worker needs all three.
CREATE OR REPLACE FUNCTION public._jobs_check_run(id uuid, version integer, worker text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF id IS NULL OR version IS NULL OR worker IS NULL THEN
        PERFORM public._jobs_refuse(
            CASE WHEN id IS NULL THEN 'id' WHEN version IS NULL THEN 'version' ELSE 'worker' END, 'missing',
            'must be given');
    END IF;
END $$;

-- The limits of rowlock's encoder, which every store can keep. The text is stored as it comes.
CREATE OR REPLACE FUNCTION public._jobs_check_json(value json, field text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    said text := value::text;
    wrong record;
BEGIN
    IF octet_length(said) > 1048576 THEN
        PERFORM public._jobs_refuse(
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
            PERFORM public._jobs_refuse(field, 'nul', E'holds a NUL character (\\u0000)');
        WHEN invalid_text_representation THEN
            PERFORM public._jobs_refuse(
                field, 'lone_surrogate', 'holds a lone surrogate, which is not valid Unicode');
        WHEN numeric_value_out_of_range THEN
            PERFORM public._jobs_refuse(field, 'not_finite', 'holds a number that is too large');
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
        PERFORM public._jobs_refuse(wrong.path, wrong.code, CASE wrong.code
            WHEN 'too_deep' THEN 'is nested deeper than 64 levels'
            WHEN 'integer_range' THEN 'is an integer beyond 64 bits; pass it as a string'
            ELSE 'is a number that is too large' END);
    END IF;
END $$;

-- Cuts out the middle of a text that is too long: the beginning and the end of an error say the most.
CREATE OR REPLACE FUNCTION public._jobs_clean(said text, most integer) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
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
CREATE OR REPLACE FUNCTION public._jobs_new_id(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
    FROM (SELECT public._jobs_us(at) AS us) t
$$;

-- Wakes waiting workers when the transaction commits. They hold this lock, shared (see doorbell.py). If no worker waits, no
-- NOTIFY is sent, because it takes a lock of the whole server. The lock is given back at once, because the caller's
-- transaction may be long.
CREATE OR REPLACE FUNCTION public._jobs_ring() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    channel text := 'rowlock_' || trim('"' FROM 'public');
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
CREATE OR REPLACE FUNCTION public._jobs_verdict(id uuid, version integer, worker text, events text[])
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
        FROM public._jobs_all j  -- a range: see _jobs_find
        WHERE j.id BETWEEN _jobs_verdict.id AND _jobs_verdict.id ORDER BY j.id LIMIT 1
    ) = ANY (events) THEN 'already' ELSE 'lost' END;
END $$;

-- Ends a run that does not complete; false if it is over already. `retries`: the new number, or NULL if this end costs none.
-- The caller has locked the row by _jobs_hold: a settle that had to wait for the lock would miss the change it waited for.
CREATE OR REPLACE FUNCTION public._jobs_settle(
    id uuid, version integer, worker text, goal text, event text, delay double precision, retries integer, error text,
    reason text)
RETURNS boolean LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    history_entry text := jsonb_strip_nulls(jsonb_build_object(
        'event', event, 'status', goal, 'version', version, 'delay', nullif(delay, 0),
        'error', public._jobs_clean(error, 4096), 'reason', reason));
    done boolean;
BEGIN
    WITH
    -- Sorted by id before rows are locked, so that two batches can't deadlock. `charged` is the new number of retries.
    s AS MATERIALIZED (
        SELECT * FROM unnest(
            ARRAY[_jobs_settle.id]::uuid[], ARRAY[_jobs_settle.version]::int[], ARRAY[_jobs_settle.goal]::text[], ARRAY[_jobs_settle.delay]::float8[], ARRAY[_jobs_settle.retries]::int[], ARRAY[_jobs_settle.error]::text[],
            NULL::text[], NULL::float8[], NULL::text[], ARRAY[history_entry]::text[], NULL::text[],
            NULL::text[], NULL::int[]
        ) AS s (id, run, goal, delay, charged, error, outcome, ran, reason, entry, fingerprint, waits_for, seen)
        ORDER BY id
    ),
    -- By primary key, one by one. Status, version and worker are checked outside: here they would let the planner choose a
    -- partial index.
    held AS MATERIALIZED (
        SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
            SELECT j.ctid AS tid, j.status, j.version, j.locked_by, greatest(j.run_at, j.created) AS due, j.signals
            FROM public._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
        ) h
    ),
    -- Read when the first row has been checked, after all locks.
    settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
    -- `becomes`: a job that has got more signals than its run has seen does not wait.
    ok AS MATERIALIZED (
        SELECT *, (SELECT now FROM settle_clock) AS now,
               CASE WHEN goal = 'waiting' AND signals > seen THEN 'pending' ELSE goal END AS becomes
        FROM held
        WHERE version = run AND locked_by = coalesce(_jobs_settle.worker::text, locked_by)
          AND (status = 'processing' AND goal <> 'cancel_requested'
               OR status = 'cancel_requested' AND goal IN ('completed', 'cancelled', 'cancel_requested'))
    ),
    gone AS (
        DELETE FROM public._jobs WHERE ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal = 'completed')) RETURNING *
    ),
    done AS MATERIALIZED (SELECT id, outcome, ran FROM ok WHERE goal = 'completed'),
    archived AS (
        INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
        SELECT (SELECT now FROM settle_clock),
               CASE WHEN d.ran IS NULL THEN g.started_at
                    ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
               (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
        -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
        FROM gone g FULL JOIN done d ON d.id = g.id
        WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
        ON CONFLICT (id) DO NOTHING
        RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
    ),
    moved AS (
        UPDATE public._jobs j SET
            status = ok.becomes,
            ready = ok.goal = 'cancel_requested' OR ok.becomes = 'pending' AND (coalesce(ok.delay, 0) = 0 OR ok.goal = 'waiting'),
            run_at = CASE WHEN ok.becomes <> ok.goal THEN ok.now
                          WHEN ok.goal IN ('pending', 'cancel_requested') AND ok.delay IS NOT NULL OR ok.goal = 'waiting'
                          THEN coalesce(ok.now + ok.delay * interval '1 second', timestamptz '9999-12-31 23:59:59.999999+00') ELSE j.run_at END,
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
            history_dropped = j.history_dropped + public._jobs_overflow(j.history),
            history = public._jobs_append(j.history, ok.entry::jsonb || jsonb_strip_nulls(jsonb_build_object(
                'at', public._jobs_us(ok.now), 'status', ok.becomes, 'by', j.locked_by, 'claimed_at', public._jobs_us(j.claimed_at),
                'started_at', public._jobs_us(
                    CASE WHEN ok.ran IS NULL THEN j.started_at
                         ELSE greatest(j.claimed_at, ok.now - ok.ran * interval '1 second') END))))
        FROM ok
        WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok WHERE goal <> 'completed')) AND j.id = ok.id AND ok.goal <> 'completed'
        RETURNING j.id, j.topic, j.line, j.status, j.status = 'pending' AND ok.charged IS NOT NULL AS retried,
                  j.started_at - ok.due AS waited, ok.now - j.started_at AS took,
                  j.ready AND ok.goal IN ('waiting', 'cancel_requested') AS woken
    ),
    ended AS (
        INSERT INTO public._jobs_ends (line)
        SELECT line FROM gone WHERE line IS NOT NULL UNION
        SELECT line FROM moved WHERE line IS NOT NULL AND status IN ('failed', 'cancelled')
        RETURNING 1
    ),
    counted AS (
        INSERT INTO public._jobs_counts (
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
        SELECT CASE WHEN count(*) < cardinality(ARRAY[_jobs_settle.id]::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied
        FROM (SELECT id FROM gone UNION ALL SELECT id FROM moved) written
    )
    SELECT applied IS NULL INTO done FROM settle_summary;
    IF done AND goal = 'pending' AND coalesce(delay, 0) = 0 THEN
        PERFORM public._jobs_ring();
    END IF;
    RETURN done;
END $$;

-- Locks the run that a worker wants to end until the transaction ends, so that its status can't change meanwhile.
CREATE OR REPLACE FUNCTION public._jobs_hold(
    id uuid, version integer, worker text, OUT status text, OUT due timestamptz, OUT retries integer,
    OUT max_retries integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM public._jobs_check_run(id, version, worker);
    SELECT j.status, greatest(j.run_at, j.created), j.retries, j.max_retries INTO status, due, retries, max_retries
    FROM public._jobs j
    WHERE j.id = _jobs_hold.id AND j.version = _jobs_hold.version AND j.locked_by = _jobs_hold.worker
      AND j.status IN ('processing', 'cancel_requested')
    FOR NO KEY UPDATE;
END $$;

-- Returns the id if there is such a job, completed or not. By a range: see read.sql.
CREATE OR REPLACE FUNCTION public._jobs_find(id uuid)
RETURNS uuid LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT j.id FROM (SELECT id FROM public._jobs UNION ALL SELECT id FROM public._jobs_archive) j
        WHERE j.id BETWEEN _jobs_find.id AND _jobs_find.id ORDER BY j.id LIMIT 1);
END $$;

-- ── For clients ──

-- The newest enabled template of a topic; no row if it has none. Refuses a topic that is disabled, and one whose keys or
-- lines only rowlock's library can make. It runs with the rights of its owner: clients need none on the templates.
CREATE OR REPLACE FUNCTION public._jobs_template(topic text, OUT version integer, OUT definition json)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    found_any boolean;
BEGIN
    SELECT t.version, t.definition INTO version, definition FROM public._jobs_templates t
    WHERE t.topic = _jobs_template.topic AND t.enabled ORDER BY t.version DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT true INTO found_any FROM public._jobs_templates t WHERE t.topic = _jobs_template.topic LIMIT 1;
        IF found_any THEN
            PERFORM public._jobs_refuse(
                'topic', 'template_disabled', format('%s is disabled: an operator must enable it first', topic));
        END IF;
    ELSIF json_typeof(definition->'key') = 'array' OR (definition->>'once')::bool
          OR definition->>'if_live' IN ('queue', 'replace') OR json_typeof(definition->'debounce') = 'object'
          OR json_typeof(definition->'throttle') = 'number' THEN
        PERFORM public._jobs_refuse(
            'topic', 'needs_library', format('%s has a key of its own, a line, a window or jobs that run once', topic),
            'Enqueue it with rowlock''s library, its command line or over HTTP.');
    END IF;
END $$;

-- The values by which limits count a job (core/limits.py), as the library writes them; NULL: the topic has no limit by a field.
-- It runs with the rights of its owner: clients need none on the records.
CREATE OR REPLACE FUNCTION public._jobs_share(topic text, payload json, key text, scope text, scope_id text)
RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    share text;
    wrong text;
BEGIN
    IF NOT EXISTS (SELECT FROM public._jobs_topics t WHERE t.limited AND t.topic = _jobs_share.topic) THEN
        RETURN NULL;
    END IF;
    WITH code AS (
        SELECT l FROM public._jobs_records r CROSS JOIN json_array_elements(r.data->'limits') l
        WHERE r.kind = 'limited' AND r.id = _jobs_share.topic
    ),
    put AS (
        SELECT r.data->'limit' AS l FROM public._jobs_records r
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
        PERFORM public._jobs_refuse(
            'payload', 'needs_library',
            format('%s has a limit by %s, and SQL can only count texts, whole numbers, true, false and null', topic, wrong),
            'Enqueue it with rowlock''s library, its command line or over HTTP.');
    END IF;
    RETURN share;
END $$;

-- Returns the id of the new job, or of the job that was there before: with this id, or live with this topic, scope and key.
-- What is not given comes from the topic's template. The payload is checked when the handler starts.
CREATE OR REPLACE FUNCTION public.enqueue_job(
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
    PERFORM public._jobs_check_topic(enqueue_job.topic, 'topic');
    template := public._jobs_template(enqueue_job.topic);
    priority := coalesce(enqueue_job.priority, (template.definition->>'priority')::int, 100);
    max_retries := coalesce(enqueue_job.max_retries, (template.definition->>'max_retries')::int, 3);
    timeout := coalesce(
        enqueue_job.timeout, make_interval(secs => (template.definition->>'timeout')::float8), '10 minutes');
    IF delay IS NOT NULL THEN
        wait := public._jobs_check_span(delay, 'delay', 0, 316224000);
        IF enqueue_job.run_at IS NOT NULL AND wait > 0 THEN
            PERFORM public._jobs_refuse('delay', 'both_given', 'give run_at or delay, not both');
        END IF;
    END IF;
    PERFORM public._jobs_check_time(enqueue_job.run_at, 'run_at');
    IF json_typeof(enqueue_job.payload) <> 'object' THEN
        PERFORM public._jobs_refuse(
            'payload', 'not_an_object', 'must be a JSON object, not ' || json_typeof(enqueue_job.payload));
    END IF;
    PERFORM public._jobs_check_json(enqueue_job.payload, 'payload');
    PERFORM public._jobs_check_number(enqueue_job.priority, 'priority', -2147483647, 2147483647);
    PERFORM public._jobs_check_time(enqueue_job.expires_at, 'expires_at');
    PERFORM public._jobs_check_text(enqueue_job.key, 'key', 512);
    PERFORM public._jobs_check_text(enqueue_job.scope, 'scope', 512);
    PERFORM public._jobs_check_text(enqueue_job.scope_id, 'scope_id', 512);
    PERFORM public._jobs_check_number(enqueue_job.max_retries, 'max_retries', 0, 1000000);
    longest := public._jobs_check_span(enqueue_job.timeout, 'timeout', 0, 316224000);
    IF longest = 0 THEN
        PERFORM public._jobs_refuse('timeout', 'out_of_range', 'must be more than 0 seconds');
    END IF;
    IF array_ndims(enqueue_job.tags) > 1 OR cardinality(enqueue_job.tags) > 32 THEN
        PERFORM public._jobs_refuse('tags', 'too_many', 'must be a list of at most 32 texts');
    END IF;
    FOR n IN 1..coalesce(cardinality(enqueue_job.tags), 0) LOOP
        PERFORM public._jobs_check_text(
            enqueue_job.tags[array_lower(enqueue_job.tags, 1) + n - 1], format('tags[%s]', n - 1), 128, true);
    END LOOP;
    PERFORM public._jobs_check_text(enqueue_job.trace, 'trace', 512);

    IF enqueue_job.id IS NOT NULL THEN  -- a repeat, more often than not: then nothing need be written
        found_id := public._jobs_find(new_id);
        IF found_id IS NOT NULL THEN
            RETURN found_id;
        END IF;
    END IF;
    share := public._jobs_share(
        enqueue_job.topic, enqueue_job.payload, enqueue_job.key, enqueue_job.scope, enqueue_job.scope_id);
    FOR attempt IN 1..8 LOOP
        now := clock_timestamp();
        new_id := coalesce(enqueue_job.id, public._jobs_new_id(now));
        INSERT INTO public._jobs (
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
            new_id < public._jobs_first_id(now - interval '1 hour')
                OR new_id >= public._jobs_first_id(now + interval '1 hour'))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            -- Has a job with this id been inserted and completed since _jobs_find? After our INSERT none can come.
            IF enqueue_job.id IS NOT NULL AND (
                SELECT a.id FROM public._jobs_archive a WHERE a.id BETWEEN new_id AND new_id ORDER BY a.id LIMIT 1
            ) IS NOT NULL THEN
                DELETE FROM public._jobs j WHERE j.id = new_id;
            ELSE
                PERFORM public._jobs_note_enqueued(now, ARRAY[enqueue_job.topic], 1);
                IF notify THEN
                    PERFORM public._jobs_ring();
                END IF;
            END IF;
            RETURN new_id;
        END IF;
        found_id := public._jobs_find(new_id);
        IF found_id IS NULL THEN
            SELECT j.id INTO found_id FROM public._jobs j
            WHERE j.topic = enqueue_job.topic AND j.key = enqueue_job.key AND j.key IS NOT NULL
              AND public._jobs_short(j.scope) = public._jobs_short(enqueue_job.scope)
              AND public._jobs_short(j.scope_id) = public._jobs_short(enqueue_job.scope_id)
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
CREATE OR REPLACE FUNCTION public.claim_job_batch(
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
    PERFORM public._jobs_check_text(worker, 'worker', 512, true);
    PERFORM public._jobs_check_number(n, 'n', 1, 1000);
    seconds := public._jobs_check_span(lease, 'lease', 0.5, 86400);
    IF topics IS NULL THEN
        PERFORM public._jobs_refuse('topics', 'missing', 'must be given');
    END IF;
    PERFORM public._jobs_check_topic(split_part(t, '@', 1), 'topics') FROM unnest(topics) t;
    IF EXISTS (SELECT FROM unnest(topics) t WHERE t LIKE '%@%' AND t !~ '^[^@]+@[0-9]{1,7}$') THEN
        PERFORM public._jobs_refuse('topics', 'bad_version', 'a version is a number: mail@2');
    END IF;
    SELECT string_agg(l.topic, ' '), string_agg(l.version, ' ') INTO lanes, versions FROM (
        SELECT DISTINCT split_part(t, '@', 1) AS topic, coalesce(nullif(split_part(t, '@', 2), ''), '0') AS version
        FROM unnest(topics) t) l;

    SELECT t.topic INTO limited_topic FROM public._jobs_topics t
    WHERE t.limited AND t.topic = ANY (string_to_array(lanes, ' ')) ORDER BY t.topic LIMIT 1;
    IF FOUND THEN
        PERFORM public._jobs_refuse('topics', 'limited',
            format('%s has limits, and SQL can''t keep them: run its jobs in a rowlock worker, or by HTTP', limited_topic));
    END IF;

    -- Promote jobs that have come due: there may be no Python worker that does it.
    WITH picked AS MATERIALIZED (
        SELECT ctid AS tid FROM public._jobs
        WHERE status = 'pending' AND NOT ready AND run_at <= (SELECT clock_timestamp())
        ORDER BY run_at
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
    UPDATE public._jobs SET ready = true WHERE ctid = ANY (ARRAY(SELECT tid FROM picked));

    RETURN QUERY WITH
    -- How many dead index entries this session has read so far. claim_bounds.py uses what the claim adds to it.
    meter AS MATERIALIZED (SELECT (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) AS claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) AS due),
    -- Lanes that may be claimed now. They come as two texts, because 500 of them take a millisecond to send as arrays.
    lane AS MATERIALIZED (
        SELECT l.n, l.topic, coalesce(l.template_version, 0) AS template_version
        FROM meter CROSS JOIN unnest(
            string_to_array(lanes::text, ' '), string_to_array(versions::text, ' ')::int[]
        ) WITH ORDINALITY AS l (topic, template_version, n)
        WHERE  l.topic <> ALL (ARRAY(
            SELECT topic FROM public._jobs_topics
            WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))
            UNION ALL SELECT topic FROM public._jobs_topics WHERE limited))
          -- After this time the worker no longer waits for the answer: see clock.py.
          AND (SELECT clock_timestamp()) <= coalesce(NULL::timestamptz, 'infinity')
    ),
    -- The parts of every lane that are read: the whole lane, or what claim_bounds.py has not ruled out.
    part AS MATERIALIZED (
        SELECT p.n, coalesce(p.after_rank, -2147483648) AS after_rank,
               coalesce(p.after_run_at, '-infinity') AS after_run_at,
               coalesce(p.after_id, '00000000-0000-0000-0000-000000000000') AS after_id,
               coalesce(p.until_rank, 2147483647) AS until_rank, coalesce(p.until_run_at, 'infinity') AS until_run_at
        FROM unnest(
            ARRAY[NULL]::int[], NULL::timestamptz[], NULL::uuid[],
            NULL::int[], NULL::timestamptz[]
        ) WITH ORDINALITY AS p (after_rank, after_run_at, after_id, until_rank, until_run_at, n)
    ),
    -- The first jobs of all lanes together, read without locks.
    top AS MATERIALIZED (
        SELECT l.n AS lane, p.n AS part FROM lane l CROSS JOIN part p CROSS JOIN LATERAL (
            SELECT -j.priority AS rank, j.run_at, j.id FROM public._jobs j
            WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
              AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
              AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY -j.priority, j.run_at, j.id
            LIMIT claim_job_batch.n::int
        ) h
        ORDER BY h.rank, h.run_at, h.id
        LIMIT claim_job_batch.n::int
    ),
    -- How many jobs to take from each lane: strict priority across lanes. For a single lane `top` is not read.
    alone AS MATERIALIZED (SELECT (SELECT count(*) FROM lane) = 1 AND cardinality(ARRAY[NULL]::int[]) = 1 AS yes),
    take AS MATERIALIZED (
        SELECT n AS lane, 1 AS part, claim_job_batch.n::int AS most FROM lane WHERE (SELECT yes FROM alone)
        UNION ALL
        SELECT lane, part, count(*)::int FROM top WHERE NOT (SELECT yes FROM alone) GROUP BY lane, part
    ),
    -- MATERIALIZED, because a SKIP LOCKED that the planner inlines into the UPDATE may take more than its LIMIT. The size is
    -- the stored one, often compressed: reading it costs nothing.
    locked AS MATERIALIZED (
        SELECT h.* FROM take t JOIN lane l ON l.n = t.lane JOIN part p ON p.n = t.part CROSS JOIN LATERAL (
            SELECT j.ctid AS tid, pg_column_size(j.payload) AS size, -j.priority AS rank, j.run_at, j.id
            FROM public._jobs j
            WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
              AND (-j.priority, j.run_at, j.id) > (p.after_rank, p.after_run_at, p.after_id)
              AND (-j.priority, j.run_at) < (p.until_rank, p.until_run_at)
              AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
            ORDER BY -j.priority, j.run_at, j.id
            LIMIT t.most
            FOR UPDATE SKIP LOCKED
        ) h
    ),
    -- The first of these jobs that are not too large together, but at least one.
    small AS MATERIALIZED (
        SELECT coalesce(sum(size), 0) <= coalesce(NULL::bigint, 9223372036854775807) AS yes FROM locked
    ),
    picked AS MATERIALIZED (
        SELECT tid FROM locked WHERE (SELECT yes FROM small)
        UNION ALL
        SELECT tid FROM (SELECT tid, sum(size) OVER (ORDER BY rank, run_at, id) - size AS before FROM locked
                         WHERE NOT (SELECT yes FROM small)) sized
        WHERE before < NULL::bigint
    ),
    -- Read when the first row is written, after all waiting.
    claim_clock AS MATERIALIZED (
        SELECT now, now + seconds::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now) c
    ),
    -- A waiting job that is cancelled runs once more, to undo what it has done: it stays cancel_requested.
    claimed AS (
        UPDATE public._jobs j SET
            status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1, locked_by = claim_job_batch.worker::text,
            locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
            started_at = CASE WHEN true::bool THEN (SELECT now FROM claim_clock) END,
            progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
            updated = (SELECT now FROM claim_clock)
        WHERE ctid = ANY (ARRAY(SELECT tid FROM picked))
        RETURNING j.*
    ),
    claim_summary AS (
        -- `seen` is one array, because each column of this row also costs a column of every claimed job. OFFSET 0 lets the
        -- meter be read last.
        SELECT ARRAY[(contended)::int, (pg_stat_get_xact_tuples_returned('public._jobs_claim'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_claim'::regclass)) - meter.claim, (pg_stat_get_xact_tuples_returned('public._jobs_due'::regclass) - pg_stat_get_xact_tuples_fetched('public._jobs_due'::regclass)) - meter.due,
                     (EXISTS (SELECT FROM public._jobs_ends))::int,
                     (EXISTS (SELECT FROM public._jobs_topics
                              WHERE limited AND topic = ANY (string_to_array(lanes::text, ' '))))::int] AS seen, next_due, now, until
        FROM meter CROSS JOIN (
            SELECT CASE WHEN (SELECT count(*) FROM claimed) < claim_job_batch.n::int
                        THEN (SELECT count(*) FROM top) > (SELECT count(*) FROM claimed) ELSE false END AS contended,
                   (SELECT greatest(0, extract(epoch FROM run_at - clock_timestamp()))::float8 FROM public._jobs
                    WHERE status IN ('pending', 'waiting') AND NOT ready AND run_at < timestamptz '9999-12-31 23:59:59.999999+00'
                      AND run_at > coalesce(NULL::timestamptz, '-infinity') ORDER BY run_at LIMIT 1) AS next_due,
                   now, until
            FROM claim_clock OFFSET 0
        ) summary
    )
    SELECT c.id, c.version, c.topic, c.payload, c.priority, c.run_at, c.key, c.scope, c.scope_id,
           ARRAY(SELECT jsonb_array_elements_text(c.tags)), c.trace, c.retries, c.max_retries,
           make_interval(secs => c.timeout), c.last_error, c.created, c.locked_until
    FROM claimed c
    ORDER BY -c.priority, c.run_at, c.id;
END $$;

-- kept: the lease is renewed. cancel: renewed, but a cancel was requested. lost: the run is over, stop it.
CREATE OR REPLACE FUNCTION public.heartbeat_job(id uuid, version integer, worker text, lease interval DEFAULT '30 seconds')
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    seconds double precision := public._jobs_check_span(lease, 'lease', 0.5, 86400);
    found_status text;
BEGIN
    PERFORM public._jobs_check_run(id, version, worker);
    UPDATE public._jobs j SET
        locked_until = greatest(j.locked_until, clock_timestamp() + seconds * interval '1 second')
    WHERE j.id = heartbeat_job.id AND j.version = heartbeat_job.version AND j.locked_by = heartbeat_job.worker
      AND j.status IN ('processing', 'cancel_requested')
    RETURNING j.status INTO found_status;
    RETURN CASE found_status WHEN 'processing' THEN 'kept' WHEN 'cancel_requested' THEN 'cancel' ELSE 'lost' END;
END $$;

-- applied. already: this run had completed before. lost: the run is over, nothing was written.
CREATE OR REPLACE FUNCTION public.complete_job(id uuid, version integer, worker text, result json DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    ended integer;
BEGIN
    PERFORM public._jobs_check_run(id, version, worker);
    PERFORM public._jobs_check_json(complete_job.result, 'result');
    WITH
    -- settle.sql for the most common batch: completed runs of one version and one worker (NULL: any, but one has it). It costs two
    -- thirds of settle (docs/decisions/0004), because the DELETE has the guard itself: it waits for a row's lock, then checks
    -- the row again.
    gone AS (
        DELETE FROM public._jobs
        WHERE id = ANY (ARRAY[complete_job.id]::uuid[]) AND version = complete_job.version::int
          AND locked_by = coalesce(complete_job.worker::text, locked_by)
          AND (status = 'processing' OR status = 'cancel_requested')
        RETURNING *
    ),
    held AS (SELECT 1 FROM gone),
    done AS MATERIALIZED (
        SELECT * FROM unnest(ARRAY[complete_job.id]::uuid[], ARRAY[complete_job.result::text]::text[], NULL::float8[]) AS d (id, outcome, ran)
    ),
    settle_clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
    archived AS (
        INSERT INTO public._jobs_archive (updated, started_at, finished_at, result, id, topic, template_version, payload, priority, run_at, expires_at, key, if_live, scope, scope_id, tags, trace, step, stage, message, last_error, retries, max_retries, crashes, timeout, version, locked_by, cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at, created, claimed_at, history, history_dropped, stray, log, log_dropped)
        SELECT (SELECT now FROM settle_clock),
               CASE WHEN d.ran IS NULL THEN g.started_at
                    ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
               (SELECT now FROM settle_clock), d.outcome::json, g.id, g.topic, g.template_version, g.payload, g.priority, g.run_at, g.expires_at, g.key, g.if_live, g.scope, g.scope_id, g.tags, g.trace, g.step, g.stage, g.message, g.last_error, g.retries, g.max_retries, g.crashes, g.timeout, g.version, g.locked_by, g.cancel_requested_at, g.cancel_reason, g.flow_id, g.schedule_id, g.fire_at, g.created, g.claimed_at, g.history, g.history_dropped, g.stray, g.log, g.log_dropped
        -- A FULL JOIN can't be a nested loop. An inner join becomes one if ANALYZE met an empty queue: 500 × 500 rows.
        FROM gone g FULL JOIN done d ON d.id = g.id
        WHERE coalesce(g.version, -1) >= 0  -- `g IS NOT NULL` would let the planner make it an inner join
        ON CONFLICT (id) DO NOTHING
        RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
    ),
    ended AS (
        INSERT INTO public._jobs_ends (line) SELECT DISTINCT line FROM gone WHERE line IS NOT NULL
    ),
    counted AS (
        INSERT INTO public._jobs_counts (at, topic, completed, executions, execution_us, waits, runs)
        SELECT (SELECT now FROM settle_clock), topic, count(*), count(took),
               coalesce(extract(epoch FROM sum(took)) * 1000000, 0),
               array_agg(date_part('epoch', waited)::real) FILTER (WHERE took IS NOT NULL),
               array_agg(date_part('epoch', took)::real) FILTER (WHERE took IS NOT NULL)
        FROM archived GROUP BY topic
    ),
    settle_summary AS (
        SELECT CASE WHEN count(*) < cardinality(ARRAY[complete_job.id]::uuid[]) THEN coalesce(array_agg(id), '{}') END AS applied FROM gone
    )
    SELECT count(*) INTO ended FROM gone;
    RETURN CASE ended WHEN 1 THEN 'applied'
                ELSE public._jobs_verdict(complete_job.id, complete_job.version, complete_job.worker, '{completed}') END;
END $$;

-- The same answers. The job is tried again after `delay` (by default retries² minutes) while retries are left, unless
-- `final`. A job whose cancel was requested is cancelled instead.
CREATE OR REPLACE FUNCTION public.fail_job(
    id uuid, version integer, worker text, error text, delay interval DEFAULT NULL, final boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    run record := public._jobs_hold(id, version, worker);
    said text := public._jobs_clean(error, 1048576);
    seconds double precision;
    done boolean;
BEGIN
    IF said IS NULL THEN
        PERFORM public._jobs_refuse('error', 'missing', 'must be given');
    END IF;
    IF delay IS NOT NULL THEN
        seconds := public._jobs_check_span(delay, 'delay', 0, 316224000);
    END IF;
    IF run.status = 'cancel_requested' THEN
        done := public._jobs_settle(
            id, version, worker, 'cancelled', 'cancelled', NULL, NULL, said, NULL);
    ELSIF final THEN
        done := public._jobs_settle(id, version, worker, 'failed', 'failed', NULL, NULL, said, NULL);
    ELSIF run.retries >= run.max_retries THEN
        said := public._jobs_clean('Max retries exceeded: ' || said, 1048576);
        done := public._jobs_settle(id, version, worker, 'failed', 'failed', NULL, NULL, said, NULL);
    ELSIF run.status = 'processing' THEN
        seconds := coalesce(seconds, least(60.0 * (run.retries + 1) ^ 2, 316224000));
        done := public._jobs_settle(
            id, version, worker, 'pending', 'retried', seconds, run.retries + 1, said, NULL);
    END IF;
    RETURN CASE WHEN done THEN 'applied'
                ELSE public._jobs_verdict(id, version, worker, '{retried,failed,cancelled}') END;
END $$;

-- A worker that stops gives the job back, in its old place and without costing a retry. The same answers.
CREATE OR REPLACE FUNCTION public.release_job(id uuid, version integer, worker text, reason text DEFAULT 'shutdown')
RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    run record := public._jobs_hold(id, version, worker);
    said text := public._jobs_clean(reason, 4096);
    done boolean;
BEGIN
    IF run.status = 'cancel_requested' THEN
        done := public._jobs_settle(
            id, version, worker, 'cancelled', 'cancelled', NULL, NULL, NULL, NULL);
    ELSIF run.status = 'processing' THEN
        done := public._jobs_settle(
            id, version, worker, 'pending', 'released', NULL, NULL, NULL, said);
    END IF;
    RETURN CASE WHEN done THEN 'applied' ELSE public._jobs_verdict(id, version, worker, '{released,cancelled}') END;
END $$;

-- ── Maintenance ──

-- Rescues jobs whose lease has expired, and returns how many. Workers could not renew their leases while the server was down:
-- after a start of the server nothing is rescued for as long as `grace`.
CREATE OR REPLACE FUNCTION public.rescue_jobs(
    by text DEFAULT 'rescue_jobs', grace interval DEFAULT '30 seconds', n integer DEFAULT 500)
RETURNS integer LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    back integer;
BEGIN
    PERFORM public._jobs_check_text(by, 'by', 512, true);
    PERFORM public._jobs_check_span(grace, 'grace', 0, 86400);
    PERFORM public._jobs_check_number(n, 'n', 1, 10000);
    IF pg_postmaster_start_time() BETWEEN clock_timestamp() - grace AND clock_timestamp() THEN
        RETURN 0;
    END IF;
    WITH picked AS MATERIALIZED (
        SELECT j.id, j.ctid AS tid, j.status AS was, j.started_at IS NOT NULL AS started, j.locked_by AS worker,
               j.retries < j.max_retries AS may_retry, j.topic, j.retries, j.crashes, clock_timestamp() AS now
        FROM public._jobs j
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
        FROM picked LEFT JOIN public._jobs_topics t ON t.topic = picked.topic
    ),
    rescued AS (
        UPDATE public._jobs j SET
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
            history_dropped = j.history_dropped + public._jobs_overflow(j.history),
            history = public._jobs_append(j.history, jsonb_strip_nulls(jsonb_build_object(
                'at', public._jobs_us(d.now), 'event', 'rescued', 'status', d.goal, 'version', j.version,
                'by', rescue_jobs.by, 'worker', d.worker, 'claimed_at', public._jobs_us(j.claimed_at),
                'started_at', public._jobs_us(j.started_at),
                'delay', CASE WHEN d.charged AND d.backoff > 0 THEN d.backoff END, 'error', d.error)))
        FROM decided d
        WHERE j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND j.id = d.id
        RETURNING j.topic, j.line, j.status, d.charged
    ),
    ended AS (
        INSERT INTO public._jobs_ends (line)
        SELECT DISTINCT line FROM rescued WHERE line IS NOT NULL AND status <> 'pending'
    ),
    counted AS (
        INSERT INTO public._jobs_counts (at, topic, expired, cancelled, retried, lost)
        SELECT clock_timestamp(), topic, count(*) FILTER (WHERE status = 'expired'),
               count(*) FILTER (WHERE status = 'cancelled'), count(*) FILTER (WHERE charged), count(*)
        FROM rescued GROUP BY topic
    )
    SELECT count(*) INTO back FROM rescued;
    IF back > 0 THEN
        PERFORM public._jobs_ring();
    END IF;
    RETURN back;
END $$;
