-- Something that is done to many jobs, and the jobs as they stood when it was prepared.
CREATE TABLE {schema}._jobs_bulk (
    id          uuid PRIMARY KEY,
    created     timestamptz NOT NULL,
    started_at  timestamptz,
    moved_at    timestamptz,  -- its last batch: those that run take turns
    finished_at timestamptz,
    total       integer NOT NULL,
    done        integer NOT NULL DEFAULT 0,
    changed     integer NOT NULL DEFAULT 0,
    gone        integer NOT NULL DEFAULT 0,
    key_taken   integer NOT NULL DEFAULT 0,
    locked      integer NOT NULL DEFAULT 0,
    reached     uuid,  -- the last job that it has come to: they are taken in the order of ids
    action      text NOT NULL,
    status      text NOT NULL,
    by          text NOT NULL,
    started_by  text,
    reason      text,
    arguments   json NOT NULL,
    filter      json NOT NULL,
    unfit       json NOT NULL,
    CONSTRAINT _jobs_bulk_status CHECK (status IN ('preview', 'running', 'stopped', 'done'))
);
CREATE INDEX _jobs_bulk_running ON {schema}._jobs_bulk (moved_at) WHERE status = 'running';

-- `events` grows with whatever happens to a job: one that has the same status and as many events has not moved since; unless
-- its id was used again, which `created` tells. Every row is written once more, hence the room on the page.
CREATE TABLE {schema}._jobs_bulk_items (
    bulk_id uuid NOT NULL,
    job_id  uuid NOT NULL,
    created timestamptz NOT NULL,
    events  integer NOT NULL,
    status  text NOT NULL,
    outcome text,
    holder  uuid,
    PRIMARY KEY (bulk_id, job_id)
) WITH (fillfactor = 60);
