-- What the view _jobs_events answers for one job; a test compares them. The job is read once, by a range: see read.sql.
-- Through the view each of its five parts would look for the job, and none of them by that range.
WITH j AS MATERIALIZED (
    SELECT * FROM {schema}._jobs_all WHERE id >= $1::uuid AND id <= $1::uuid ORDER BY id LIMIT 2
),
past AS MATERIALIZED (
    SELECT j.id, j.history_dropped, e, n, (e->>'version')::int AS version, (
               SELECT count(*)::int FROM jsonb_array_elements(j.history) o WHERE (o->>'version')::int < (e->>'version')::int
           ) AS before
    FROM j CROSS JOIN jsonb_array_elements(j.history) WITH ORDINALITY AS h (e, n)
)
SELECT id AS job_id, 0 AS seq, created AS at, 'enqueued' AS event,
       CASE WHEN if_live IS NULL AND (flow_id IS NULL OR NOT EXISTS (
           SELECT FROM {schema}._jobs_edges e WHERE e.child = j.id AND e.call IS NULL))
            THEN 'pending' ELSE 'blocked' END AS status, 0 AS version, NULL::text AS by, '{}'::jsonb AS data
FROM j
UNION ALL  -- claims of runs that ended without completing
SELECT id, version + history_dropped + before, {schema}._jobs_time((e->>'claimed_at')::bigint), 'claimed', 'processing',
       version, coalesce(e->>'worker', e->>'by'), jsonb_strip_nulls(jsonb_build_object('started_at', e->'started_at'))
FROM past WHERE e ? 'claimed_at'
UNION ALL  -- the claim of the run that is open, or that completed
SELECT id, version + history_dropped + (
           SELECT count(*)::int FROM jsonb_array_elements(history) o WHERE (o->>'version')::int < j.version),
       claimed_at, 'claimed', 'processing', version, locked_by,
       jsonb_strip_nulls(jsonb_build_object('started_at', {schema}._jobs_us(started_at)))
FROM j WHERE status IN ('processing', 'completed') OR status = 'cancel_requested' AND locked_until IS NOT NULL
UNION ALL
SELECT id, (n + history_dropped)::int + version, {schema}._jobs_time((e->>'at')::bigint), e->>'event', e->>'status',
       version, e->>'by', e - '{at,event,status,version,by}'::text[]
FROM past
UNION ALL
SELECT id, events_count - 1, finished_at, 'completed', 'completed', version, locked_by, '{}'::jsonb
FROM j WHERE status = 'completed'
ORDER BY seq
