-- Counts are added; sketches have been, under the same write lock.
INSERT INTO _jobs_rollups (
    span, topic, at, enqueued, completed, failed, expired, cancelled, retried, lost, requeued, deleted, waits, runs)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (span, topic, at) DO UPDATE
SET enqueued = enqueued + excluded.enqueued, completed = completed + excluded.completed, failed = failed + excluded.failed,
    expired = expired + excluded.expired, cancelled = cancelled + excluded.cancelled, retried = retried + excluded.retried,
    lost = lost + excluded.lost, requeued = requeued + excluded.requeued, deleted = deleted + excluded.deleted,
    waits = coalesce(excluded.waits, waits), runs = coalesce(excluded.runs, runs)
