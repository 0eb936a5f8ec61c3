-- Note jobs whose keys count once: the parameter is {line: id}. A line that is there stays as it is. In order: no two can deadlock.
WITH new AS (
    INSERT INTO {schema}._jobs_once (line, job_id, at)
    SELECT s.key, s.value::uuid, clock_timestamp() FROM json_each_text($1::text::json) s ORDER BY s.key
    ON CONFLICT (line) DO NOTHING
    RETURNING 1
)
SELECT count(*)::text FROM new
