-- Notes the lines that jobs have come to. A statement of its own: callers without such jobs need no right to this table.
WITH noted AS (
    INSERT INTO {schema}._jobs_ends (line) SELECT line FROM json_array_elements_text($1::text::json) AS l (line)
    RETURNING 1
)
SELECT count(*)::text FROM noted
