-- Which failures are the same (core.fingerprint): written by whatever makes a dead letter, or soon after it by
-- `group_failures`, which also sees to those that were there before. Whoever is older than this column leaves it empty.
ALTER TABLE {schema}._jobs ADD COLUMN fingerprint text;

-- The first two have all that groups are made of.
-- No other statement asks for a fingerprint, so none is tempted by these; and a job that is on its way is in none of them.
CREATE INDEX _jobs_failures ON {schema}._jobs (finished_at, fingerprint, topic, id)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_fingerprint ON {schema}._jobs (fingerprint, id, finished_at, topic)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_ungrouped ON {schema}._jobs (finished_at) WHERE fingerprint IS NULL AND status IN ('failed', 'expired');
