-- Writes what has changed of edges. Their children are locked.
UPDATE {schema}._jobs_edges e SET fills = s.fills, ended = s.ended, verdict = s.verdict, result = s.result, error = s.error
FROM json_to_recordset($1::text::json) AS s (child uuid, parent uuid, fills bool, ended text, verdict text, result json, error text)
WHERE e.child = s.child AND e.parent = s.parent
