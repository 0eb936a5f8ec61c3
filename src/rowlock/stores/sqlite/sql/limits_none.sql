-- Jobs of a lane that have no share, if they are among its first jobs.
SELECT -priority, run_at, id FROM (
    SELECT priority, run_at, id, share FROM _jobs
    WHERE ready AND topic = :topic AND template_version = :version AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY priority DESC, run_at, id LIMIT 1000)
WHERE share IS NULL LIMIT :limit
