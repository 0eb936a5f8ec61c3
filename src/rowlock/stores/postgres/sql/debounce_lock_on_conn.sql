-- Locks the jobs of these lines that no worker has claimed, in the order of ids as every verb does it. They are found without
-- locks first; a job that was claimed meanwhile is left out. The parameter is [line, …]. Answers [[time, row], …].
WITH s AS MATERIALIZED (
    SELECT j.id FROM json_array_elements_text($1::text::json) AS l (line) CROSS JOIN LATERAL (
        SELECT j.id FROM {schema}._jobs j
        WHERE j.line = l.line AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
    ) j
    ORDER BY j.id
),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j
        WHERE j.id = s.id AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
        FOR NO KEY UPDATE
    ) h
)
SELECT coalesce(json_agg(json_build_array({schema}._jobs_us(clock_timestamp()), row_to_json(held))), '[]')::text FROM held
