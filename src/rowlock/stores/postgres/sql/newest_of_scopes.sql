-- Each scope_id's own newest jobs, for all of them at once.
SELECT asked.n, j.id::text FROM unnest($1::text[]) WITH ORDINALITY AS asked (scope_id, n) CROSS JOIN LATERAL (
    SELECT id FROM (
        (SELECT id FROM {schema}._jobs WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $2::int)
        UNION ALL
        (SELECT id FROM {schema}._jobs_archive WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $2::int)
    ) both_tables ORDER BY id DESC LIMIT $2::int
) j
ORDER BY asked.n, j.id DESC
