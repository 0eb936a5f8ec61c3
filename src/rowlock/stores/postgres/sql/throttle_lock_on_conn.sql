-- Locks the rows of throttled keys, and makes those that are missing. In order: no two can deadlock. The parameter is
-- [[line, seconds], …]. A row stays for the longest window that was asked for. Answers [[line, job, its time, the time now], …].
WITH held AS (
    INSERT INTO {schema}._jobs_throttles AS t (line, at, until)
    SELECT s.line, c.now, c.now + s.seconds * interval '1 second'
    FROM (SELECT e->>0 AS line, (e->>1)::float8 AS seconds FROM json_array_elements($1::text::json) e ORDER BY 1) s,
         (SELECT clock_timestamp() AS now) c
    ON CONFLICT (line) DO UPDATE SET until = greatest(t.until, t.at + (excluded.until - excluded.at))
    RETURNING t.line, t.job_id, t.at, clock_timestamp() AS now
)
SELECT coalesce(json_agg(json_build_array(line, job_id, {schema}._jobs_us(at), {schema}._jobs_us(now))), '[]')::text
FROM held
