-- What becomes of runs, beside how jobs end: counted in the same way, from now on. With a default, because a worker that
-- is older than these columns still adds rows.
ALTER TABLE _jobs_totals ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;  -- failed or crashed, and put back for a retry
ALTER TABLE _jobs_totals ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;  -- taken back by `rescue`, whatever came of it
