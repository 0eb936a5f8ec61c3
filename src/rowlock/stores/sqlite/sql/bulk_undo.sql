-- What an earlier one has cancelled that was pending: as it has left it, with one more entry in its history.
INSERT INTO _jobs_bulk_items (bulk_id, job_id, status, created, events)
SELECT :id, job_id, 'cancelled', created, events + 1 FROM _jobs_bulk_items
WHERE bulk_id = :undoes AND status = 'pending' AND outcome = 'done'
