-- Writes what has changed of edges. Their children are locked. Equal changes come once:
-- [[children, parents, fills, ended, verdict, result, error], …], where ids stand in one text.
WITH c AS MATERIALIZED (
    SELECT c->>0 AS children, c->>1 AS parents, (c->>2)::bool AS fills, c->>3 AS ended, c->>4 AS verdict,
           (c->>5)::json AS result, c->>6 AS error
    FROM json_array_elements($1::text::json) AS c
)
UPDATE {schema}._jobs_edges e
SET fills = c.fills, ended = c.ended, verdict = c.verdict, result = c.result, error = c.error
FROM c
CROSS JOIN LATERAL unnest(string_to_array(c.children, ' ')::uuid[], string_to_array(c.parents, ' ')::uuid[]) AS s (child, parent)
WHERE e.child = s.child AND e.parent = s.parent
