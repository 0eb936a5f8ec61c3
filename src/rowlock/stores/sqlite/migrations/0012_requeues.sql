-- How many jobs were requeued, by how they had ended: `failed`, `expired` and `cancelled` go down by as many. Their sum never
-- goes down, which is what a counter for alerts must not do. With a default, because a worker that is older than these columns
-- still adds rows.
ALTER TABLE _jobs_totals ADD COLUMN requeued_failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE _jobs_totals ADD COLUMN requeued_expired INTEGER NOT NULL DEFAULT 0;
ALTER TABLE _jobs_totals ADD COLUMN requeued_cancelled INTEGER NOT NULL DEFAULT 0;
