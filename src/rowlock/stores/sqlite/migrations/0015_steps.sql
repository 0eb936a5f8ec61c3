-- What is stored of jobs' steps (docs/steps.md). Only jobs whose `step` is not NULL have rows here.
CREATE TABLE _jobs_steps (
    job_id      TEXT NOT NULL,
    name        TEXT NOT NULL,
    n           INTEGER NOT NULL,      -- the n-th call of this name
    position    INTEGER NOT NULL,      -- among all steps of the job, in the order of their calls
    function    TEXT NOT NULL,
    state       TEXT NOT NULL,
    retries     INTEGER NOT NULL,
    cancelable  INTEGER NOT NULL,
    version     INTEGER NOT NULL,      -- the run that wrote it last
    started_at  INTEGER NOT NULL,
    finished_at INTEGER,
    result      TEXT,
    error       TEXT,
    CONSTRAINT _jobs_steps_state CHECK (state = 'pending' OR state = 'running' OR state = 'succeeded' OR state = 'failed'
        OR state = 'cancelled'),
    PRIMARY KEY (job_id, name, n)
);
