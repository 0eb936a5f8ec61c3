-- :new: nothing may be there, or only what has expired; else whatever is there is replaced.
INSERT INTO _jobs_records (kind, id, created, updated, expires_at, data)
VALUES (:kind, :id, :now, :now, :expires_at, :data)
ON CONFLICT (kind, id) DO UPDATE SET
    revision = revision + 1, updated = excluded.updated, expires_at = excluded.expires_at, data = excluded.data
WHERE NOT :new OR expires_at <= :now
RETURNING 1
