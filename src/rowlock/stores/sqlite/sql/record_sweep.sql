DELETE FROM _jobs_records
WHERE (kind, id) IN (SELECT kind, id FROM _jobs_records WHERE expires_at <= :now LIMIT :limit)
RETURNING 1
