-- Writes a flow and its edges, given as {flow: …, edges: […], lines: […]}. A repeat changes nothing. `lines`: of parents that
-- have ended already: `advance` looks at them.
WITH given AS MATERIALIZED (SELECT $1::text::json AS g),
made AS (
    INSERT INTO {schema}._jobs_flows AS f (id, name, by, jobs, nodes, created, looked)
    SELECT (g->'flow'->>'id')::uuid, g->'flow'->>'name', g->'flow'->>'by', (g->'flow'->>'jobs')::int, g->'flow'->'nodes',
           clock_timestamp(), clock_timestamp()
    FROM given
    ON CONFLICT (id) DO UPDATE SET jobs = f.jobs + (SELECT (g->'flow'->>'more')::int FROM given)
    WHERE (SELECT (g->'flow'->>'more')::int FROM given) > 0
    RETURNING 1
),
edged AS (
    INSERT INTO {schema}._jobs_edges (child, parent, flow_id, name, line, if_failed, condition, fills, call, place, owner)
    SELECT s.child, s.parent, s.flow_id, s.name, s.line, s.if_failed, s.condition, s.fills, s.call, s.place, s.owner
    FROM given, json_to_recordset(g->'edges') AS s (
        child uuid, parent uuid, flow_id uuid, name text, line text, if_failed text, condition text, fills bool,
        call int, place int, owner text)
    ON CONFLICT DO NOTHING RETURNING 1
),
noted AS (
    INSERT INTO {schema}._jobs_ends (line) SELECT value FROM given, json_array_elements_text(g->'lines') RETURNING 1
)
SELECT ((SELECT count(*) FROM made) + (SELECT count(*) FROM edged) + (SELECT count(*) FROM noted))::text
