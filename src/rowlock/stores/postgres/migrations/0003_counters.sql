-- What becomes of runs, beside how jobs end: counted in the same way, from now on.
ALTER TABLE {schema}._jobs_totals
    ADD COLUMN retried bigint NOT NULL DEFAULT 0,  -- failed or crashed, and put back at the cost of a retry
    ADD COLUMN lost    bigint NOT NULL DEFAULT 0;  -- taken back by `rescue`, whatever came of it
ALTER TABLE {schema}._jobs_counts
    ADD COLUMN retried integer NOT NULL DEFAULT 0,
    ADD COLUMN lost    integer NOT NULL DEFAULT 0;
