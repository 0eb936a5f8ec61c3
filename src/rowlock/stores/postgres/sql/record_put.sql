-- $5: true if a record that has not expired must not be replaced.
INSERT INTO {schema}._jobs_records AS r (kind, id, created, updated, expires_at, data)
SELECT $1::text, $2::text, now, now, $4::timestamptz, $3::text::json FROM (SELECT clock_timestamp() AS now) c
ON CONFLICT (kind, id) DO UPDATE SET
    revision = r.revision + 1, updated = excluded.updated, expires_at = excluded.expires_at, data = excluded.data
WHERE NOT $5::bool OR r.expires_at <= excluded.updated
RETURNING 1
