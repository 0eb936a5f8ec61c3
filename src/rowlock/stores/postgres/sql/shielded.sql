-- Which of these jobs a cancel timeout must leave alone. They are locked; this is a statement of its own, because one that
-- waited for the lock would not see a step that began meanwhile.
SELECT j.id FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, version, locked_until FROM {schema}._jobs WHERE id = asked.id
) j
WHERE {shielded}
