-- A key belongs to its scope: one live job per (topic, scope, scope_id, key), so that tenants can't block each other.
-- NULLs are distinct in a unique index, so '' stands for them; no scope and no scope_id is ''.
--
-- What was unique by (key, topic) is unique by more columns, so this can't fail. SQLite can't rename an index, and running
-- processes of an older release ask for this one by its name. So the old one goes first: in one transaction, which holds the
-- write lock, so that two live jobs with one key are possible at no time.
DROP INDEX _jobs_live_key;
CREATE UNIQUE INDEX _jobs_live_key ON _jobs (key, topic, coalesce(scope, ''), coalesce(scope_id, ''))
    WHERE key IS NOT NULL AND finished_at IS NULL;
