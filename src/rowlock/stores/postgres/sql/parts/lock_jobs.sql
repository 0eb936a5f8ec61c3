-- Locks jobs by id, in the order of ids as every verb does it, and reads them as core.moves.Row.
-- $2: with their payloads. $3: also those of the archive whose ids have been used again.
-- Rows of the archive are not locked: only last log lines update them, and a delete that misses one is repeated (Conflict in
-- moves.py). A lock would be taken in another order than those of live jobs, and two transactions could wait in a circle.
WITH s AS MATERIALIZED (SELECT id FROM unnest($1::uuid[]) AS s (id) GROUP BY id ORDER BY id),
held AS MATERIALIZED (
    SELECT h.* FROM s CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE
    ) h
),
old AS MATERIALIZED (
    SELECT a.* FROM s CROSS JOIN LATERAL (
        SELECT {archived_row} FROM {schema}._jobs_archive j
        WHERE j.id >= s.id AND j.id <= s.id ORDER BY j.id LIMIT 1  -- by a range: see read.sql
    ) a
    WHERE $3::bool OR s.id NOT IN (SELECT id::uuid FROM held)
)
SELECT {locked}, found.* FROM (SELECT * FROM old UNION ALL SELECT * FROM held) AS found
