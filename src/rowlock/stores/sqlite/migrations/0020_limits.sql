-- Limits and fair share (docs/limits.md).

-- The values by which a job is limited, as JSON; NULL for all other jobs.
ALTER TABLE _jobs ADD COLUMN share TEXT;
-- Of limited topics whose limits are by a field: the shares that have jobs to start, and the jobs of a share.
CREATE INDEX _jobs_share ON _jobs (topic, template_version, share, priority DESC, run_at, id)
    WHERE ready AND share IS NOT NULL;

-- The plain claim leaves these topics out.
ALTER TABLE _jobs_topics ADD COLUMN limited INTEGER NOT NULL DEFAULT 0;
CREATE INDEX _jobs_topics_limited ON _jobs_topics (topic) WHERE limited;

-- One row. `turns`: whose turn it was last, by topic.
CREATE TABLE _jobs_limits (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    turns TEXT NOT NULL
);
INSERT INTO _jobs_limits (one, epoch, turns) VALUES (1, 0, '{}');

-- The starts of jobs with a rate, counted by parts of its window. `at`: the last start of the part.
CREATE TABLE _jobs_starts (
    rule   TEXT NOT NULL,
    value  TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    until  INTEGER NOT NULL,  -- from then on it can be removed
    PRIMARY KEY (rule, value, bucket)
) WITHOUT ROWID;
CREATE INDEX _jobs_starts_until ON _jobs_starts (until);
