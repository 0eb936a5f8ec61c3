-- What else changes how many jobs are not done: those that were requeued (their notes take an end back, which tells it), and
-- pending ones that were deleted.
ALTER TABLE {schema}._jobs_counts ADD COLUMN deleted integer NOT NULL DEFAULT 0;
ALTER TABLE {schema}._jobs_rollups
    ADD COLUMN requeued bigint NOT NULL DEFAULT 0,
    ADD COLUMN deleted  bigint NOT NULL DEFAULT 0;
