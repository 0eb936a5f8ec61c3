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
    FROM {schema}._jobs j WHERE j.id = (SELECT id FROM asked) FOR NO KEY UPDATE
),
ok AS MATERIALIZED (
    SELECT asked.*, held.tid, clock_timestamp() AS now FROM held CROSS JOIN asked
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status = 'processing'
),
stored AS MATERIALIZED (
    SELECT s.state, s.result, s.deadline FROM ok JOIN {schema}._jobs_steps s
        ON s.job_id = ok.id AND s.name = ok.name AND s.n = ok.n
),
unread AS MATERIALIZED (
    SELECT s.seq, s.data FROM ok CROSS JOIN LATERAL (
        SELECT seq, data FROM {schema}._jobs_signals s
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
    UPDATE {schema}._jobs j SET step = decided.name, updated = decided.now
    FROM decided
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM decided)) AND j.id = decided.id
    RETURNING j.id
),
read AS (
    -- No join: a plan that was made while the table was empty would read all of it.
    UPDATE {schema}._jobs_signals SET wait = (SELECT name FROM asked), wait_n = (SELECT n FROM asked)
    WHERE job_id = (SELECT id FROM marked) AND seq = (SELECT seq FROM unread)
),
written AS (
    INSERT INTO {schema}._jobs_steps AS s (
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
) answer ON true
