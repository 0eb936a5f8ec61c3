-- Newest first, along the primary key; one snapshot, so that a job that is being completed is not seen twice.
SELECT {columns}, EXISTS (SELECT 1 FROM {schema}.{other} a WHERE a.id = j.id) AS twice,
       EXISTS (SELECT 1 FROM {schema}._jobs_steps s WHERE s.job_id = j.id) AS has_steps
FROM {schema}.{table} j WHERE j.id < $1::uuid ORDER BY j.id DESC LIMIT $2::int
