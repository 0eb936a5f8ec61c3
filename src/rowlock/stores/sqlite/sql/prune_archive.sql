DELETE FROM _jobs_archive
WHERE n IN (SELECT n FROM _jobs_archive WHERE topic = :topic AND finished_at <= :since ORDER BY finished_at LIMIT :limit)
RETURNING id, step IS NOT NULL
