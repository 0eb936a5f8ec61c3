SELECT job_id, status, outcome, holder FROM {schema}._jobs_bulk_items
WHERE bulk_id = $1::uuid AND job_id >= $2::uuid
  AND ($3::text IS NULL OR CASE WHEN $3::text = 'unrun' THEN outcome IS NULL ELSE outcome = $3::text END)
ORDER BY job_id
LIMIT $4::int
