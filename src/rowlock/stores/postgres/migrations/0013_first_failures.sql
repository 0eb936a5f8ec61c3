-- When a group of failures (core.fingerprint) was seen first. Written when dead letters are requeued, which takes them out
-- of their group; as long as they are in it, they say it themselves.
CREATE TABLE {schema}._jobs_first_failures (
    fingerprint text PRIMARY KEY,
    at timestamptz NOT NULL
);
