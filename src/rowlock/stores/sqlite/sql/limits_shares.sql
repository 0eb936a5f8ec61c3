-- The shares of a lane behind :after that have jobs to start, at most :limit: one look into the index for each.
WITH RECURSIVE walk (share) AS (
    SELECT (SELECT share FROM _jobs
            WHERE ready AND share IS NOT NULL AND topic = :topic AND template_version = :version AND share > :after
              AND (expires_at IS NULL OR expires_at > :now)
            ORDER BY share LIMIT 1)
    UNION ALL
    SELECT (SELECT j.share FROM _jobs j
            WHERE j.ready AND j.share IS NOT NULL AND j.topic = :topic AND j.template_version = :version
              AND j.share > walk.share
              AND (j.expires_at IS NULL OR j.expires_at > :now)
            ORDER BY j.share LIMIT 1)
    FROM walk WHERE walk.share IS NOT NULL
)
SELECT share FROM walk WHERE share IS NOT NULL LIMIT :limit
