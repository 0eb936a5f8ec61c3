-- :preview, :ended: what is older may not be started: `prune_bulks` may be at its items.
UPDATE _jobs_bulk
SET status = iif(done + changed + gone + key_taken + locked < total, 'running', 'done'),
    finished_at = iif(done + changed + gone + key_taken + locked < total, NULL, :now),
    started_at = coalesce(started_at, :now), moved_at = :now, started_by = :by, reason = coalesce(:reason, reason)
WHERE id = :id AND (status = 'preview' AND created > :preview OR status = 'stopped' AND finished_at > :ended)
