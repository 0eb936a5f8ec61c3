DELETE FROM {schema}._jobs_steps
WHERE job_id = $1::uuid AND (name, n) IN (SELECT * FROM unnest($2::text[], $3::int[]))
