-- One by one, and each as the first of a range: only the primary key has that order. To a plan that was made while a part of
-- the archive was empty, `id = …` is as cheap by (topic, id), which it would then read from end to end until the next
-- ANALYZE, however many jobs have come. At most two: a caller's own id may have been used twice, and stand in both tables.
SELECT {columns} FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}._jobs_all WHERE id >= asked.id AND id <= asked.id ORDER BY id LIMIT 2
) j
