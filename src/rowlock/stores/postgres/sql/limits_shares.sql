-- The shares of a lane ($1, $2) behind $3 that have jobs to start, at most $4: one look into the index for each. NULL: from the
-- first on, and ! for jobs that have none, if some of the first jobs of the lane have none.
WITH RECURSIVE walk (share) AS (
    (SELECT j.share FROM {schema}._jobs j
     WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int
       AND j.share > coalesce($3::text, '')
     ORDER BY j.share LIMIT 1)
    UNION ALL
    SELECT (SELECT j.share FROM {schema}._jobs j
            WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int
              AND j.share > w.share
            ORDER BY j.share LIMIT 1)
    FROM walk w WHERE w.share IS NOT NULL
),
none AS (
    SELECT '!' AS share WHERE $3::text IS NULL AND EXISTS (
        SELECT FROM (SELECT j.share FROM {schema}._jobs j
                     WHERE j.ready AND j.topic = $1::text AND j.template_version = $2::int
                     ORDER BY -j.priority, j.run_at, j.id LIMIT 1000) head
        WHERE head.share IS NULL)
)
SELECT share FROM none
UNION ALL
(SELECT share FROM walk WHERE share IS NOT NULL LIMIT $4::int)
