-- The first jobs of lanes ($1, $2) whose limits are by no field; of each at most $3. With the place of the lane, from 1 on.
SELECT l.n::int, h.rank, {schema}._jobs_us(h.run_at), h.id::text
FROM unnest($1::text[], $2::int[], $3::int[]) WITH ORDINALITY AS l (topic, template_version, most, n)
CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
    WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT l.most
) h
ORDER BY l.n, h.rank, h.run_at, h.id
