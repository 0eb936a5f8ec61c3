-- Limits and fair share (docs/limits.md).

-- The values by which a job is limited, as JSON; NULL for all other jobs.
ALTER TABLE {schema}._jobs ADD COLUMN share text COLLATE "C";
-- Of limited topics whose limits are by a field: the shares that have jobs to start, and the jobs of a share.
CREATE INDEX _jobs_share ON {schema}._jobs (topic, template_version, share, (-priority), run_at, id)
    WHERE ready AND share IS NOT NULL;

-- The plain claim leaves these topics out.
ALTER TABLE {schema}._jobs_topics ADD COLUMN limited boolean NOT NULL DEFAULT false;
CREATE INDEX _jobs_topics_limited ON {schema}._jobs_topics (topic) WHERE limited;

-- One row. Each claim of limited topics, and each change of limits, adds one to `epoch`: a claim that was decided before
-- it does nothing. `turns`: whose turn it was last, by topic.
CREATE TABLE {schema}._jobs_limits (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    turns json NOT NULL
) WITH (fillfactor = 10);
INSERT INTO {schema}._jobs_limits (epoch, turns) VALUES (0, '{}');

-- The starts of jobs with a rate, counted by parts of its window. `at`: the last start of the part.
CREATE TABLE {schema}._jobs_starts (
    rule   text COLLATE "C" NOT NULL,
    value  text COLLATE "C" NOT NULL,
    bucket bigint NOT NULL,
    n      integer NOT NULL,
    at     timestamptz NOT NULL,
    until  timestamptz NOT NULL,  -- from then on it can be removed
    PRIMARY KEY (rule, value, bucket)
) WITH (fillfactor = 70);
CREATE INDEX _jobs_starts_until ON {schema}._jobs_starts (until);
