SELECT status, version, history FROM _jobs WHERE id = :id
UNION ALL
SELECT 'completed', version, history FROM _jobs_archive WHERE id = :id
