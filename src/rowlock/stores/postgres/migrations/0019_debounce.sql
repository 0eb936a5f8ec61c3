-- Debounce and throttle (docs/debounce.md). A job with debounce stands in a line: its if_live is 'debounce'.

-- A line has at most one job that no worker has claimed yet: a newer enqueue replaces its payload. Of two that find none, the
-- second waits for the first here. No job has had this if_live before: the index is empty.
CREATE UNIQUE INDEX _jobs_debounced ON {schema}._jobs (line)
    WHERE if_live = 'debounce' AND version = 0 AND status IN ('pending', 'blocked');

-- The last job that was made with each throttled key. The job itself may be gone.
CREATE TABLE {schema}._jobs_throttles (
    line   text COLLATE "C" PRIMARY KEY,  -- a digest of topic, scope, scope_id and key
    job_id uuid,                          -- NULL: the row was locked, but no job was made
    at     timestamptz NOT NULL,          -- when the job was enqueued
    until  timestamptz NOT NULL           -- when the row may go
) WITH (fillfactor = 80);
CREATE INDEX _jobs_throttles_until ON {schema}._jobs_throttles (until);
