DELETE FROM _jobs
WHERE n IN (SELECT n FROM _jobs WHERE finished_at IS NOT NULL AND status = ? AND finished_at <= ?
            ORDER BY finished_at LIMIT ?)
