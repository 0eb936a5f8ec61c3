-- What is few and is looked up by its name: settings, accounts, sessions, tokens. `revision` counts the writes, so that who
-- changes what it has read does not undo what another has written since.
CREATE TABLE _jobs_records (
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    revision   INTEGER NOT NULL DEFAULT 1,
    created    INTEGER NOT NULL,
    updated    INTEGER NOT NULL,
    expires_at INTEGER,
    data       TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX _jobs_records_expiry ON _jobs_records (expires_at) WHERE expires_at IS NOT NULL;
