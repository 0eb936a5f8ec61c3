-- Write schedules that are locked, or new; their fires; and the audit. The jobs of the fires learn where they come from.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
gone AS (
    DELETE FROM {schema}._jobs_schedules
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
           {schema}._jobs_time(paused_at) AS paused_at, {schema}._jobs_time(resumed_at) AS resumed_at, paused_by,
           pause_reason, {schema}._jobs_time(upto) AS upto, {schema}._jobs_time(next_run_at) AS next_run_at,
           {schema}._jobs_time(last_run_at) AS last_run_at, last_job_id, zone_data,
           {schema}._jobs_time(created) AS created, {schema}._jobs_time(updated) AS updated
    FROM given
),
new AS (
    INSERT INTO {schema}._jobs_schedules ({schedule_columns})
    SELECT {schedule_columns} FROM written WHERE is_new
    ON CONFLICT DO NOTHING
    RETURNING 1
),
changed AS (
    UPDATE {schema}._jobs_schedules s SET ({schedule_columns}) = ROW (
        w.id, w.name, w.scope, w.scope_id, w.topic, w.definition, w.revision, w.owner, w.absent, w.paused_at, w.resumed_at,
        w.paused_by, w.pause_reason, w.upto, w.next_run_at, w.last_run_at, w.last_job_id, w.zone_data, w.created, w.updated)
    FROM written w WHERE s.id = w.id AND NOT w.is_new
),
fires AS MATERIALIZED (
    SELECT f.schedule_id, {schema}._jobs_time(f.fire_at) AS fire_at, {schema}._jobs_time(f.at) AS at, f.kind, f.job_id,
           f.reason, f.detail
    FROM asked, json_to_recordset(a->'fires') AS f (
        schedule_id uuid, fire_at bigint, at bigint, kind text, job_id uuid, reason text, detail text)
),
-- A time that made no job may get one later, by a backfill. One that has a job keeps it.
fired AS (
    INSERT INTO {schema}._jobs_fires AS f (schedule_id, fire_at, at, kind, job_id, reason, detail)
    SELECT schedule_id, fire_at, at, kind, job_id, reason, detail FROM fires
    ON CONFLICT (schedule_id, fire_at) DO UPDATE
    SET at = excluded.at, kind = excluded.kind, job_id = excluded.job_id, reason = excluded.reason, detail = excluded.detail
    WHERE f.job_id IS NULL
    RETURNING f.job_id
),
-- By primary keys: the planner must not read the whole table.
marked AS (
    UPDATE {schema}._jobs j SET schedule_id = f.schedule_id, fire_at = f.fire_at
    FROM fires f WHERE j.id = ANY (ARRAY(SELECT job_id FROM fires WHERE job_id IS NOT NULL)) AND j.id = f.job_id
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, topic, reason, data)
    SELECT clock_timestamp(), e.by, e.action, e.topic, e.reason, e.data
    FROM asked, json_to_recordset(a->'entries') AS e (by text, action text, topic text, reason text, data json)
)
SELECT json_build_array((SELECT count(*) FROM new), (SELECT count(job_id) FROM fired))::text
