SELECT id, data FROM _jobs_records WHERE kind = ? ORDER BY id
