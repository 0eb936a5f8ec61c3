-- The first jobs of these shares ($3) of a lane ($1, $2), at most $4 of each. For !: those that have none, if they are among the
-- first jobs of the lane.
SELECT s.share, h.rank, {schema}._jobs_us(h.run_at), h.id::text
FROM unnest($3::text[]) AS s (share) CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
    WHERE j.ready AND j.share IS NOT NULL AND j.topic = $1::text AND j.template_version = $2::int AND j.share = s.share
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT $4::int
) h
UNION ALL
(SELECT '!', head.rank, {schema}._jobs_us(head.run_at), head.id::text FROM (
    SELECT -j.priority AS rank, j.run_at, j.id, j.share, j.expires_at FROM {schema}._jobs j
    WHERE j.ready AND j.topic = $1::text AND j.template_version = $2::int
    ORDER BY -j.priority, j.run_at, j.id LIMIT 1000
 ) head
 WHERE '!' = ANY ($3::text[]) AND head.share IS NULL
   AND (head.expires_at IS NULL OR head.expires_at > (SELECT clock_timestamp()))
 ORDER BY head.rank, head.run_at, head.id LIMIT $4::int)
