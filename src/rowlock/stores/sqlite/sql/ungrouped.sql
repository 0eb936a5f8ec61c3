SELECT j.n, j.topic, {error} FROM _jobs j INDEXED BY _jobs_ungrouped
WHERE j.fingerprint IS NULL AND (j.status = 'failed' OR j.status = 'expired')
ORDER BY j.finished_at DESC LIMIT :limit
