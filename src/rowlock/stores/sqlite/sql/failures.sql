-- :topics is a JSON array, or NULL. :seconds and :parts: a trend's part in microseconds, and how many parts it has. A row
-- per group, and at least one, for the numbers at its end.
WITH seen AS MATERIALIZED (
    {seen}
),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, count(*) AS n, min(finished_at) AS first, max(finished_at) AS last
    FROM seen WHERE :topics IS NULL OR topic IN (SELECT value FROM json_each(:topics))
    GROUP BY fingerprint
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT :limit
),
counted AS (
    SELECT g.fingerprint, max((:now - s.finished_at) / :seconds, 0) AS part, count(*) AS n,
           max(s.id) FILTER (WHERE s.finished_at = g.last) AS sample
    FROM seen s JOIN grouped g ON g.fingerprint = s.fingerprint
    GROUP BY 1, 2
),
trends AS MATERIALIZED (
    SELECT fingerprint, max(sample) AS sample,
           json_group_array(json_array(part, n)) FILTER (WHERE part < :parts) AS parts
    FROM counted GROUP BY fingerprint
)
SELECT g.fingerprint, g.topic, g.n, g.first, g.last, t.sample,
       (SELECT {error} FROM _jobs j WHERE j.id = t.sample), t.parts,
       (SELECT count(*) FROM seen),
       (SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_ungrouped
            WHERE fingerprint IS NULL AND (status = 'failed' OR status = 'expired') LIMIT :bound))
FROM (SELECT 1) LEFT JOIN grouped g ON 1 LEFT JOIN trends t ON t.fingerprint = g.fingerprint
ORDER BY g.n DESC, g.last DESC, g.fingerprint
