-- Schedules and their fires (docs/schedules.md).

CREATE TABLE _jobs_schedules (
    id           TEXT NOT NULL PRIMARY KEY,
    name         TEXT NOT NULL,
    scope        TEXT,
    scope_id     TEXT,
    topic        TEXT NOT NULL,
    definition   TEXT NOT NULL,     -- when, what and every policy
    revision     INTEGER NOT NULL,  -- grows with each change by a person or a deploy
    owner        TEXT,              -- the module whose code declares it; NULL: it was put
    absent       INTEGER NOT NULL DEFAULT 0,  -- the code that declared it does so no more
    paused_at    INTEGER,
    resumed_at   INTEGER,           -- NULL after paused_at: it is paused
    paused_by    TEXT,
    pause_reason TEXT,
    upto         INTEGER NOT NULL,  -- every nominal time up to this one is decided
    next_run_at  INTEGER,           -- the next nominal time; NULL: it never fires again
    last_run_at  INTEGER,           -- the newest nominal time that has made a job
    last_job_id  TEXT,
    zone_data    TEXT NOT NULL,     -- the version of the time zone data behind next_run_at
    created      INTEGER NOT NULL,
    updated      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX _jobs_schedules_name ON _jobs_schedules (name, coalesce(scope, ''), coalesce(scope_id, ''));
CREATE INDEX _jobs_schedules_due ON _jobs_schedules (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX _jobs_schedules_topic ON _jobs_schedules (topic);

-- What became of each nominal time. The primary key makes it exact: at most one job per schedule and time, ever.
CREATE TABLE _jobs_fires (
    schedule_id TEXT NOT NULL,
    fire_at     INTEGER NOT NULL,
    at          INTEGER NOT NULL,   -- when it was decided
    kind        TEXT NOT NULL,      -- 'schedule', 'run_now' or 'backfill'
    job_id      TEXT,
    reason      TEXT,               -- why it made no job
    detail      TEXT,
    PRIMARY KEY (schedule_id, fire_at),
    CONSTRAINT _jobs_fires_end CHECK ((job_id IS NULL) = (reason IS NOT NULL))
) WITHOUT ROWID;
-- Fires with a job stay as long as their schedule. The others are pruned.
CREATE INDEX _jobs_fires_without_job ON _jobs_fires (at) WHERE job_id IS NULL;
