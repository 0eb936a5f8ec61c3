WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS tid, j.status FROM {schema}._jobs j WHERE j.id = s.id FOR UPDATE
    ) h
),
gone AS (
    DELETE FROM {schema}._jobs
    WHERE ctid = ANY (ARRAY(SELECT tid FROM held WHERE status IN ('pending', 'failed', 'cancelled', 'expired')))
    RETURNING id, topic, status
),
-- By ranges: see get.sql. Then by ctid, which each part of the archive has for itself: IS TRUE keeps `IN` a mere filter.
old AS MATERIALIZED (
    SELECT a.* FROM s CROSS JOIN LATERAL (
        SELECT id, ctid AS tid FROM {schema}._jobs_archive WHERE id >= s.id AND id <= s.id ORDER BY id LIMIT 1
    ) a
),
gone_archived AS (
    DELETE FROM {schema}._jobs_archive
    WHERE ctid = ANY (ARRAY(SELECT tid FROM old)) AND (id IN (SELECT id FROM old)) IS TRUE
    RETURNING id, topic, 'completed' AS status
),
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, deleted)
    SELECT clock_timestamp(), topic, count(*) FROM gone WHERE status = 'pending' GROUP BY topic
),
deleted AS (SELECT * FROM gone UNION ALL SELECT * FROM gone_archived),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, job_id, topic, reason, data)
    SELECT clock_timestamp(), $2::text, 'delete', id, topic, $3::text, json_build_object('status', status)
    FROM deleted ORDER BY id
)
SELECT id, status, true AS done, NULL::uuid AS holder FROM deleted
UNION ALL
SELECT id, status, false, NULL FROM held WHERE id NOT IN (SELECT id FROM gone)
