SELECT j.finished_at, j.fingerprint, j.topic, j.id FROM {schema}._jobs j
    WHERE j.fingerprint = $7::text AND j.finished_at IS NOT NULL AND j.finished_at >= $2::timestamptz
    ORDER BY j.id DESC
    LIMIT $1::int