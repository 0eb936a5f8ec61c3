-- The pending jobs that an earlier bulk action cancelled and that nothing has changed since.
INSERT INTO {schema}._jobs_bulk_items (bulk_id, job_id, status, created, events)
SELECT $1::uuid, job_id, 'cancelled', created, events + 1 FROM {schema}._jobs_bulk_items
WHERE bulk_id = $2::uuid AND status = 'pending' AND outcome = 'done'
