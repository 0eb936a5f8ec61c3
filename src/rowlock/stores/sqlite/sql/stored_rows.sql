-- Newest first, along the index of ids; one snapshot, so that a job that is being completed is not seen twice.
SELECT {columns}, EXISTS (SELECT 1 FROM {other} a WHERE a.id = j.id),
       EXISTS (SELECT 1 FROM _jobs_steps s WHERE s.job_id = j.id)
FROM {table} j WHERE j.id < :before ORDER BY j.id DESC LIMIT :limit
