SELECT r.span, r.topic, date_part('epoch', r.at)::bigint, r.waits, r.runs
FROM unnest($1::int[], $2::text[], $3::timestamptz[]) AS k (span, topic, at)
JOIN {schema}._jobs_rollups r ON r.span = k.span AND r.topic = k.topic AND r.at = k.at
