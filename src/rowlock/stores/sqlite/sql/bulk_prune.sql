DELETE FROM _jobs_bulk_items
WHERE bulk_id = :id AND job_id IN (SELECT job_id FROM _jobs_bulk_items WHERE bulk_id = :id ORDER BY job_id LIMIT :limit)
