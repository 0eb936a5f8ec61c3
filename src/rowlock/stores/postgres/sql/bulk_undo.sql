-- What an earlier one has cancelled that was pending: as it has left it, with one more entry in its history.
INSERT INTO {schema}._jobs_bulk_items (bulk_id, job_id, status, created, events)
SELECT $1::uuid, job_id, 'cancelled', created, events + 1 FROM {schema}._jobs_bulk_items
WHERE bulk_id = $2::uuid AND status = 'pending' AND outcome = 'done'
