DELETE FROM {schema}._jobs_records
WHERE (kind, id) IN (SELECT kind, id FROM {schema}._jobs_records WHERE expires_at <= clock_timestamp() LIMIT $1::int)
RETURNING 1
