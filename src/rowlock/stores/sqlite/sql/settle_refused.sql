SELECT status, version, locked_by, history FROM _jobs WHERE id = :id
UNION ALL
SELECT 'completed', version, locked_by, history FROM _jobs_archive WHERE id = :id
