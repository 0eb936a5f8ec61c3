-- Something that is done to many jobs, and the jobs as they stood when it was prepared.
CREATE TABLE _jobs_bulk (
    id          TEXT PRIMARY KEY,
    created     INTEGER NOT NULL,
    started_at  INTEGER,
    moved_at    INTEGER,  -- its last batch: those that run take turns
    finished_at INTEGER,
    total       INTEGER NOT NULL DEFAULT 0,
    done        INTEGER NOT NULL DEFAULT 0,
    changed     INTEGER NOT NULL DEFAULT 0,
    gone        INTEGER NOT NULL DEFAULT 0,
    key_taken   INTEGER NOT NULL DEFAULT 0,
    locked      INTEGER NOT NULL DEFAULT 0,
    reached     TEXT,  -- the last job that it has come to: they are taken in the order of ids
    action      TEXT NOT NULL,
    status      TEXT NOT NULL DEFAULT 'preview',
    "by"        TEXT NOT NULL,
    started_by  TEXT,
    reason      TEXT,
    arguments   TEXT NOT NULL,
    "filter"    TEXT NOT NULL,
    unfit       TEXT NOT NULL,
    CONSTRAINT _jobs_bulk_status CHECK (
        status = 'preview' OR status = 'running' OR status = 'stopped' OR status = 'done')
) WITHOUT ROWID;
CREATE INDEX _jobs_bulk_running ON _jobs_bulk (moved_at) WHERE status = 'running';

-- `events` grows with whatever happens to a job: one that has the same status and as many events has not moved since; unless
-- its id was used again, which `created` tells.
CREATE TABLE _jobs_bulk_items (
    bulk_id TEXT NOT NULL,
    job_id  TEXT NOT NULL,
    created INTEGER NOT NULL,
    events  INTEGER NOT NULL,
    status  TEXT NOT NULL,
    outcome TEXT,
    holder  TEXT,
    PRIMARY KEY (bulk_id, job_id)
) WITHOUT ROWID;
