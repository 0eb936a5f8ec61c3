DELETE FROM _jobs
WHERE n IN (SELECT n FROM _jobs
            WHERE finished_at IS NOT NULL AND status = :status AND topic = :topic AND finished_at <= :since
            ORDER BY finished_at LIMIT :limit)
RETURNING id, step IS NOT NULL
