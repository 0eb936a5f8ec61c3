-- Counts are added. Sketches come whole: the process that folds has added them, and it is the only one.
INSERT INTO {schema}._jobs_rollups AS r (
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
    waits = coalesce(excluded.waits, r.waits), runs = coalesce(excluded.runs, r.runs)
