SELECT j.finished_at, j.fingerprint, j.topic, j.id FROM {schema}._jobs j
    WHERE j.fingerprint IS NOT NULL AND j.finished_at IS NOT NULL AND j.finished_at >= $2::timestamptz
      AND $7::text IS NULL
      AND ($3::text[] IS NULL OR j.topic = ANY ($3::text[]))
    ORDER BY j.finished_at DESC
    LIMIT $1::int