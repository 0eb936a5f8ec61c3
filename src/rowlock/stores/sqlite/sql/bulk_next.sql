SELECT job_id, status, created, events FROM _jobs_bulk_items
WHERE bulk_id = :id AND job_id > :after
ORDER BY job_id
LIMIT :limit
