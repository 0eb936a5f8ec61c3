-- $1: how many dead letters are read. $3: topics, or NULL. $4: how many groups. $5, $6: the seconds of a part of the trend,
-- and how many parts it has; older dead letters are one part more. $8 to $10: the group after which to begin, or NULL. The
-- answer has a row per group, but at least one, because each row ends with the numbers of all groups.
WITH every AS MATERIALIZED (
    SELECT fingerprint, part, min(topic) AS topic, count(*)::int AS n, min(finished_at) AS first, max(finished_at) AS last
    FROM (
        SELECT seen.*, least(greatest(floor(extract(epoch FROM (SELECT clock_timestamp()) - finished_at)
                                            / $5::float8), 0), $6::int)::int AS part
        FROM ({seen}) seen
    ) s
    GROUP BY fingerprint, part
),
-- If one fingerprint was asked for, its topic is compared here: failures_of_one.sql does not read it.
counted AS (SELECT * FROM every WHERE $3::text[] IS NULL OR topic = ANY ($3::text[])),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, sum(n)::int AS n, min(first) AS first, max(last) AS last,
           array_agg(part) AS parts, array_agg(n) AS counts
    FROM counted
    GROUP BY fingerprint
    HAVING $8::int IS NULL OR sum(n) < $8::int OR (sum(n) = $8::int AND (
        max(last) < $9::timestamptz OR (max(last) = $9::timestamptz AND fingerprint > $10::text)))
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT $4::int
)
SELECT g.fingerprint, g.topic, g.n, least(g.first, f.at) AS first, g.last, newest.id::text AS sample, newest.error, g.parts, g.counts,
       (SELECT coalesce(sum(n), 0)::int FROM counted) AS looked_at,
       (SELECT count(*)::int FROM (
            SELECT 1 FROM {schema}._jobs u WHERE u.fingerprint IS NULL AND u.status IN ('failed', 'expired')
              AND ($3::text[] IS NULL OR u.topic = ANY ($3::text[]))
            LIMIT $1::int) u) AS ungrouped
FROM (SELECT) AS always
LEFT JOIN grouped g ON true
LEFT JOIN {schema}._jobs_first_failures f ON f.fingerprint = g.fingerprint
LEFT JOIN LATERAL (
    SELECT j.id, {short_error} AS error FROM {schema}._jobs j
    WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at = g.last
      AND j.fingerprint = g.fingerprint
    ORDER BY j.id DESC
    LIMIT 1
) newest ON true
ORDER BY g.n DESC, g.last DESC, g.fingerprint
