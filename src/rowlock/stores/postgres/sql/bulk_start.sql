-- $3, $4: for so many seconds a preview, or a stopped bulk action, may be started. Later, `bulk_prune` may have deleted
-- some of its items.
WITH started AS (
    UPDATE {schema}._jobs_bulk b SET
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
    INSERT INTO {schema}._jobs_audit (at, by, action, reason, data)
    SELECT moved_at, $2::text, 'bulk_start', reason, json_build_object(
        'bulk', id, 'action', action, 'arguments', arguments, 'filter', filter, 'count', total)
    FROM started
)
SELECT 1 FROM started
