-- The first jobs of lanes ($1, $2) without limits, at most $3: a claim of limited topics lets those of a higher priority go first.
SELECT h.rank, {schema}._jobs_us(h.run_at), h.id::text
FROM unnest($1::text[], $2::int[]) AS l (topic, template_version) CROSS JOIN LATERAL (
    SELECT -j.priority AS rank, j.run_at, j.id FROM {schema}._jobs j
    WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT clock_timestamp()))
    ORDER BY -j.priority, j.run_at, j.id LIMIT $3::int
) h
ORDER BY h.rank, h.run_at, h.id LIMIT $3::int
