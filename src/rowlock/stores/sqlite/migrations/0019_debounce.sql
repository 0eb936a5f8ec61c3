-- Debounce and throttle (docs/debounce.md). A job with debounce stands in a line: its if_live is 'debounce'.

-- The last job that was made with each throttled key. The job itself may be gone.
CREATE TABLE _jobs_throttles (
    line   TEXT NOT NULL PRIMARY KEY,  -- a digest of topic, scope, scope_id and key
    job_id TEXT NOT NULL,
    at     INTEGER NOT NULL,           -- when the job was enqueued
    until  INTEGER NOT NULL            -- when the row may go
) WITHOUT ROWID;
CREATE INDEX _jobs_throttles_until ON _jobs_throttles (until);
