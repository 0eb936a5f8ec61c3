SELECT log, log_dropped FROM _jobs WHERE id = :id
UNION ALL
SELECT log, log_dropped FROM _jobs_archive WHERE id = :id
