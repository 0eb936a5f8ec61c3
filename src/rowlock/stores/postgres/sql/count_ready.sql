SELECT (SELECT count(*) FROM (SELECT FROM {schema}._jobs j
                              WHERE j.ready AND j.topic = l.topic AND j.template_version = l.template_version
                              LIMIT $3::int) r)
FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS l (topic, template_version, n)
ORDER BY l.n
