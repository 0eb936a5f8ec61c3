-- The write lock is held since the candidates were read: they are all still ready. Not RETURNING, which keeps the rows
-- aside until all are changed and hands them over one by one: to read them again (claim_rows) costs half as much.
-- A waiting job that is cancelled runs once more: it stays cancel_requested.
UPDATE _jobs
SET status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = 0, version = version + 1, locked_by = :worker, locked_until = :until,
    claimed_at = :now, started_at = :started, progress = CASE WHEN step IS NULL THEN 0 ELSE progress END,
    stage = NULL, message = NULL, updated = :now
WHERE n IN (SELECT value FROM json_each(:rows))
