-- Lock schedules, and read the clock after that. One text in, one text out, as insert_on_conn.sql.
WITH asked AS MATERIALIZED (SELECT $1::text::json AS a),
found AS MATERIALIZED (
    SELECT s.* FROM {schema}._jobs_schedules s
    WHERE {which}
)
SELECT json_build_object(
    'rows', (SELECT coalesce(json_agg({schedule_row} ORDER BY s.id), '[]') FROM found s),
    'now', {schema}._jobs_us(clock_timestamp())
)::text
