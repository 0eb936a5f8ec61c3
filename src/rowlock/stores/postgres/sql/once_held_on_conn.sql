-- Which jobs have these keys for ever. By a fresh snapshot: another transaction may have been first.
SELECT coalesce(json_object_agg(o.line, o.job_id), '{}')::text FROM {schema}._jobs_once o
WHERE o.line = ANY (ARRAY(SELECT json_array_elements_text($1::text::json)))
