SELECT job_id, status, outcome, holder FROM _jobs_bulk_items
WHERE bulk_id = :id AND job_id > :after AND (:outcome IS NULL OR coalesce(outcome, 'unrun') = :outcome)
ORDER BY job_id
LIMIT :limit
