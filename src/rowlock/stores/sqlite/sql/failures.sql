-- :topics is a JSON array, or NULL. :span and :parts: a trend's part in microseconds, and how many parts it has; what is
-- older is one part more. :after_…: the group behind which to begin, or NULL. A row per group, and at least one, for the numbers at its end.
WITH every AS MATERIALIZED (
    SELECT fingerprint, min(max((:now - finished_at) / :span, 0), :parts) AS part, min(topic) AS topic, count(*) AS n,
           min(finished_at) AS first, max(finished_at) AS last
    FROM ({seen})
    GROUP BY 1, 2
),
-- Where one fingerprint is asked for, its topic, which is part of it, is first looked at here.
counted AS (SELECT * FROM every WHERE :topics IS NULL OR topic IN (SELECT value FROM json_each(:topics))),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, sum(n) AS n, min(first) AS first, max(last) AS last,
           json_group_array(json_array(part, n)) AS parts
    FROM counted
    GROUP BY fingerprint
    HAVING :after_n IS NULL OR sum(n) < :after_n OR (sum(n) = :after_n AND (
        max(last) < :after_last OR (max(last) = :after_last AND fingerprint > :after_fingerprint)))
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT :limit
),
newest AS MATERIALIZED (
    SELECT fingerprint, (
        SELECT max(j.id) FROM _jobs j INDEXED BY _jobs_failures
        WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at = g.last
          AND j.fingerprint = g.fingerprint) AS id
    FROM grouped g
)
SELECT g.fingerprint, g.topic, g.n, min(g.first, coalesce(f.at, g.first)), g.last, newest.id,
       (SELECT {error} FROM _jobs j WHERE j.id = newest.id), g.parts,
       (SELECT coalesce(sum(n), 0) FROM counted),
       (SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_ungrouped
            WHERE fingerprint IS NULL AND (status = 'failed' OR status = 'expired')
              AND (:topics IS NULL OR topic IN (SELECT value FROM json_each(:topics))) LIMIT :bound))
FROM (SELECT 1) LEFT JOIN grouped g ON 1 LEFT JOIN newest ON newest.fingerprint = g.fingerprint
LEFT JOIN _jobs_first_failures f ON f.fingerprint = g.fingerprint
ORDER BY g.n DESC, g.last DESC, g.fingerprint
