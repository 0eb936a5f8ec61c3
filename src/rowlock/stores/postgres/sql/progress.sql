WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $5::text[])
        AS s (id, run, progress, stage, message)
    ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.version FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT * FROM held WHERE version = run AND status IN ('processing', 'cancel_requested')
),
reported AS (
    UPDATE {schema}._jobs j SET
        progress = ok.progress, stage = coalesce(ok.stage, j.stage), message = coalesce(ok.message, j.message),
        updated = clock_timestamp()
    FROM ok
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
    RETURNING j.id
)
-- A row that was changed since our snapshot is locked, but too new to be written.
SELECT held.id, held.status, held.version, reported.id IS NOT NULL AS written
FROM held LEFT JOIN reported ON reported.id = held.id
