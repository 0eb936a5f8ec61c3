-- SKIP LOCKED: a heartbeat never waits. For a row that another transaction has locked, the store asks `standing`; the run
-- does not count as lost.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::bool[]) AS s (id, run, worker, started) ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version, j.locked_by
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT * FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
kept AS (
    UPDATE {schema}._jobs j SET
        locked_until = greatest(j.locked_until, clock_timestamp() + $5::float8 * interval '1 second'),
        started_at = CASE WHEN ok.started THEN coalesce(j.started_at, clock_timestamp()) ELSE j.started_at END
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
)
-- A row that was changed since our snapshot is locked, but too new for the UPDATE.
SELECT held.id, held.status, held.version, held.locked_by, kept.id IS NOT NULL AS written
FROM held LEFT JOIN kept ON kept.id = held.id
