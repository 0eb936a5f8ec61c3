-- The first jobs of a share.
SELECT -priority, run_at, id FROM _jobs
WHERE ready AND share IS NOT NULL AND topic = :topic AND template_version = :version AND share = :share
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY priority DESC, run_at, id LIMIT :limit
