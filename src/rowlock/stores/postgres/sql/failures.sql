-- $1: how many dead letters are looked at. $3: topics, or NULL. $4: how many groups. $5, $6: a trend's part in seconds,
-- and how many parts it has. A row per group, and at least one, for the numbers at its end.
WITH seen AS MATERIALIZED (
    {seen}
),
grouped AS MATERIALIZED (
    SELECT fingerprint, min(topic) AS topic, count(*)::int AS n, min(finished_at) AS first, max(finished_at) AS last
    FROM seen WHERE $3::text[] IS NULL OR topic = ANY ($3::text[])
    GROUP BY fingerprint
    ORDER BY n DESC, last DESC, fingerprint
    LIMIT $4::int
),
parts AS (
    SELECT g.fingerprint, p.part, count(*)::int AS n,
           max(s.id::text COLLATE "C") FILTER (WHERE s.finished_at = g.last) AS sample
    FROM grouped g JOIN seen s ON s.fingerprint = g.fingerprint CROSS JOIN LATERAL (
        SELECT greatest(floor(extract(epoch FROM (SELECT clock_timestamp()) - s.finished_at) / $5::float8), 0) AS part
    ) p
    GROUP BY g.fingerprint, p.part
),
trends AS MATERIALIZED (
    SELECT fingerprint, max(sample COLLATE "C") AS sample,
           array_agg(part::int) FILTER (WHERE part < $6::int) AS parts, array_agg(n) FILTER (WHERE part < $6::int) AS counts
    FROM parts GROUP BY fingerprint
)
SELECT g.fingerprint, g.topic, g.n, g.first, g.last, t.sample, t.error, t.parts, t.counts,
       (SELECT count(*)::int FROM seen) AS looked_at,
       (SELECT count(*)::int FROM (
            SELECT 1 FROM {schema}._jobs u WHERE u.fingerprint IS NULL AND u.status IN ('failed', 'expired')
            LIMIT $1::int) u) AS ungrouped
FROM (SELECT) AS always
LEFT JOIN grouped g ON true
LEFT JOIN LATERAL (
    SELECT t.*, (SELECT {error} FROM {schema}._jobs j WHERE j.id = t.sample::uuid) AS error
    FROM trends t WHERE t.fingerprint = g.fingerprint
) t ON true
ORDER BY g.n DESC, g.last DESC, g.fingerprint
