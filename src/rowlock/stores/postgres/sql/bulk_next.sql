SELECT job_id::text, status, {schema}._jobs_us(created), events FROM {schema}._jobs_bulk_items
WHERE bulk_id = $1::uuid AND job_id >= $2::uuid ORDER BY job_id LIMIT $3::int
