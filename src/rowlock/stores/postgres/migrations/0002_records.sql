-- What is few and is looked up by its name: settings, accounts, sessions, tokens. `revision` counts the writes, so that who
-- changes what it has read does not undo what another has written since.
CREATE TABLE {schema}._jobs_records (
    kind       text NOT NULL,
    id         text NOT NULL,
    revision   integer NOT NULL DEFAULT 1,
    created    timestamptz NOT NULL,
    updated    timestamptz NOT NULL,
    expires_at timestamptz,
    data       json NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE INDEX _jobs_records_expiry ON {schema}._jobs_records (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX _jobs_audit_job ON {schema}._jobs_audit (job_id) WHERE job_id IS NOT NULL;
