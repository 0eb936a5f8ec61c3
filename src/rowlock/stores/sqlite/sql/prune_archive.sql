DELETE FROM _jobs_archive
WHERE n IN (SELECT n FROM _jobs_archive WHERE finished_at <= ? ORDER BY finished_at LIMIT ?)
