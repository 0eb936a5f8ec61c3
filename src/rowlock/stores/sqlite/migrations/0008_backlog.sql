-- What else changes how many jobs are not done: those that were requeued, and pending ones that were deleted.
ALTER TABLE _jobs_counts ADD COLUMN requeued INTEGER NOT NULL DEFAULT 0;
ALTER TABLE _jobs_counts ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE _jobs_rollups ADD COLUMN requeued INTEGER NOT NULL DEFAULT 0;
ALTER TABLE _jobs_rollups ADD COLUMN deleted INTEGER NOT NULL DEFAULT 0;
