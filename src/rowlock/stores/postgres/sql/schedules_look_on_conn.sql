-- Which of these times have a job already, and how many jobs are live in these lines? By a fresh snapshot: the schedules are
-- locked. In a line with two live jobs, one waits, even if none is the head yet.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a)
SELECT json_build_object(
    'fired', (
        SELECT coalesce(json_agg(json_build_array(t.schedule_id, t.fire_at)), '[]')
        FROM asked, json_to_recordset(a->'times') AS t (schedule_id uuid, fire_at bigint)
        -- One by one: a plan that was made for an empty table would join, and read all fires.
        WHERE (SELECT f.job_id FROM {schema}._jobs_fires f
               WHERE f.schedule_id = t.schedule_id AND f.fire_at = {schema}._jobs_time(t.fire_at)) IS NOT NULL),
    'live', (
        SELECT coalesce(json_object_agg(l.line,
            -- One condition for each index.
            (SELECT count(*) FROM {schema}._jobs j WHERE j.line = l.line AND j.line IS NOT NULL
             AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested'))
            + (SELECT count(*) FROM (SELECT FROM {schema}._jobs j WHERE j.line = l.line AND j.line IS NOT NULL
               AND j.status = 'blocked' LIMIT 2) b)), '{}')
        FROM asked, json_array_elements_text(a->'lines') AS l (line))
)::text
