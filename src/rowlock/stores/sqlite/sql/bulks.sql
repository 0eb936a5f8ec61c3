SELECT id, action, status, arguments, "filter", unfit, total, done, changed, gone, key_taken, locked, reason, "by",
       started_by, created, started_at, moved_at, finished_at
FROM _jobs_bulk
WHERE (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids))) AND id < :before
ORDER BY id DESC
LIMIT :limit
