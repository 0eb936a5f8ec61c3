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
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT *, clock_timestamp() AS now FROM held
    WHERE version = run AND locked_by = coalesce(worker, locked_by) AND status IN ('processing', 'cancel_requested')
),
reported AS (
    UPDATE {schema}._jobs j SET
        progress = coalesce(ok.progress, j.progress), stage = coalesce(ok.stage, j.stage),
        message = coalesce(ok.message, j.message), updated = ok.now,
        {added}
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
)
-- A row that was changed since our snapshot is locked, but too new for the UPDATE.
SELECT held.id, held.status, held.version, held.locked_by, reported.id IS NOT NULL AS written
FROM held LEFT JOIN reported ON reported.id = held.id
