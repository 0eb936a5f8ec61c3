-- Schedules and their fires (docs/schedules.md).

CREATE TABLE {schema}._jobs_schedules (
    id           uuid PRIMARY KEY,
    name         text COLLATE "C" NOT NULL,
    scope        text COLLATE "C",
    scope_id     text COLLATE "C",
    topic        text COLLATE "C" NOT NULL,
    definition   json NOT NULL,               -- when, what and every policy
    revision     integer NOT NULL,            -- grows with each change by a person or a deploy
    owner        text COLLATE "C",            -- the module whose code declares it; NULL: it was put
    absent       boolean NOT NULL DEFAULT false,  -- the code that declared it does so no more
    paused_at    timestamptz,
    resumed_at   timestamptz,                 -- NULL after paused_at: it is paused
    paused_by    text,
    pause_reason text,
    upto         timestamptz NOT NULL,        -- every nominal time up to this one is decided
    next_run_at  timestamptz,                 -- the next nominal time; NULL: it never fires again
    last_run_at  timestamptz,                 -- the newest nominal time that has made a job
    last_job_id  uuid,
    zone_data    text COLLATE "C" NOT NULL,               -- the version of the time zone data behind next_run_at
    created      timestamptz NOT NULL,
    updated      timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX _jobs_schedules_name ON {schema}._jobs_schedules (name, coalesce(scope, ''), coalesce(scope_id, ''));
CREATE INDEX _jobs_schedules_due ON {schema}._jobs_schedules (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX _jobs_schedules_topic ON {schema}._jobs_schedules (topic);

-- What became of each nominal time. The primary key makes it exact: at most one job per schedule and time, ever.
CREATE TABLE {schema}._jobs_fires (
    schedule_id uuid NOT NULL REFERENCES {schema}._jobs_schedules ON DELETE CASCADE,
    fire_at     timestamptz NOT NULL,
    at          timestamptz NOT NULL,         -- when it was decided
    kind        text NOT NULL,                -- 'schedule', 'run_now' or 'backfill'
    job_id      uuid,
    reason      text,                         -- why it made no job
    detail      text,
    PRIMARY KEY (schedule_id, fire_at),
    CONSTRAINT _jobs_fires_end CHECK ((job_id IS NULL) = (reason IS NOT NULL))
);
-- Fires with a job stay as long as their schedule. The others are pruned.
CREATE INDEX _jobs_fires_without_job ON {schema}._jobs_fires (at) WHERE job_id IS NULL;
