-- checksum: 20c2cfd5705dc48df95f493bb308838b8e24b4db5bd280deec0280ed86e67946
-- Of the text that databases were migrated with. What it had to say about functions is in functions.sql now.
-- A key belongs to its scope: one live job per (topic, scope, scope_id, key), so that tenants can't block each other.

-- NULLs are distinct in a unique index, so NULL is a text of its own here. An entry of an index has 2,700 bytes at most, and a
-- key alone may have 2,048, so of a long text there is only a digest. No two values give the same text.
CREATE FUNCTION {schema}._jobs_short(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN value IS NULL THEN '' WHEN octet_length(value) <= 200 THEN '=' || value
           ELSE '#' || encode(sha256(convert_to(value, 'UTF8')), 'hex') END
$$;

-- What was unique by (key, topic) is unique by more columns, so this can't fail. The new index is built before the old one
-- goes, and both in one transaction: at no time can two live jobs have one key. It gets the old one's name, by which it is
-- looked for. The lock that DROP INDEX needs is taken first: a transaction that has read _jobs and then writes would make a
-- deadlock of it later. Until the migration commits, other transactions wait when they come to _jobs. The new index is made by
-- reading the table once; only live jobs that have a key are entered.
LOCK TABLE {schema}._jobs IN ACCESS EXCLUSIVE MODE;
CREATE UNIQUE INDEX _jobs_live_scoped_key
    ON {schema}._jobs (key, topic, {schema}._jobs_short(scope), {schema}._jobs_short(scope_id))
    WHERE key IS NOT NULL AND status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested');
DROP INDEX {schema}._jobs_live_key;
ALTER INDEX {schema}._jobs_live_scoped_key RENAME TO _jobs_live_key;
