-- Charts: what happened when. A row for each transaction and topic, in which jobs came or ended; `fold_counts` adds them up
-- by minute, hour and day. Workers that are older than this write none.
CREATE TABLE _jobs_counts (
    n         INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    topic     TEXT NOT NULL,
    enqueued  INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    expired   INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    retried   INTEGER NOT NULL DEFAULT 0,
    lost      INTEGER NOT NULL DEFAULT 0,
    waits     BLOB,  -- core/sketch.py
    runs      BLOB
);

-- The topic '' is all of them together.
CREATE TABLE _jobs_rollups (
    span      INTEGER NOT NULL,  -- seconds: a minute, an hour or a day
    topic     TEXT NOT NULL,
    at        INTEGER NOT NULL,  -- when it begins, by UTC
    enqueued  INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    expired   INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    retried   INTEGER NOT NULL,
    lost      INTEGER NOT NULL,
    waits     BLOB,
    runs      BLOB,
    PRIMARY KEY (span, topic, at)
) WITHOUT ROWID;
CREATE INDEX _jobs_rollups_old ON _jobs_rollups (span, at);
