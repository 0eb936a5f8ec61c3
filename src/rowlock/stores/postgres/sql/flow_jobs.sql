-- The ids of all jobs of a flow that are there, with their statuses.
SELECT j.id::text, j.status FROM {schema}._jobs j WHERE j.flow_id = $1::uuid AND j.flow_id IS NOT NULL
UNION ALL
SELECT a.id::text, 'completed' FROM {schema}._jobs_archive a WHERE a.flow_id = $1::uuid AND a.flow_id IS NOT NULL
