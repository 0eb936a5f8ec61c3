SELECT j.id, j.topic, j.finished_at, {short_error} FROM {schema}._jobs j
WHERE j.fingerprint IS NULL AND j.status IN ('failed', 'expired')
ORDER BY j.finished_at DESC
LIMIT $1::int
