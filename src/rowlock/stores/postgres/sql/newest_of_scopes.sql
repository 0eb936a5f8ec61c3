-- The newest jobs of each scope_id. $2, $3: the topics and statuses that are wanted, with spaces between them; NULL: all.
-- Of each table $5 rows are read. The next row is `beyond`: nothing is known of the rows after it.
SELECT asked.n, j.id::text, j.beyond
FROM (
    SELECT n, scope_id, string_to_array(topics, ' ') AS topics, string_to_array(statuses, ' ') AS statuses
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS a (scope_id, topics, statuses, n)
) asked
CROSS JOIN LATERAL (
    SELECT id, beyond FROM (
        (SELECT id, seen > $5::int AS beyond FROM (
            SELECT id, topic, status, row_number() OVER (ORDER BY id DESC) AS seen FROM (
                SELECT id, topic, status FROM {schema}._jobs
                WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $5::int + 1
            ) newest
        ) numbered
        WHERE seen > $5::int OR ((asked.topics IS NULL OR topic = ANY (asked.topics))
                                 AND (asked.statuses IS NULL OR status = ANY (asked.statuses)))
        ORDER BY id DESC LIMIT $4::int)
        UNION ALL
        (SELECT id, seen > $5::int AS beyond FROM (
            SELECT id, topic, row_number() OVER (ORDER BY id DESC) AS seen FROM (
                SELECT id, topic FROM {schema}._jobs_archive
                WHERE scope_id = asked.scope_id ORDER BY id DESC LIMIT $5::int + 1
            ) newest
        ) numbered
        WHERE (asked.statuses IS NULL OR 'completed' = ANY (asked.statuses))
          AND (seen > $5::int OR asked.topics IS NULL OR topic = ANY (asked.topics))
        ORDER BY id DESC LIMIT $4::int)
    ) both_tables ORDER BY id DESC LIMIT $4::int
) j
ORDER BY asked.n, j.id DESC
