-- Which failures are the same (core.fingerprint): written by whatever makes a dead letter, or soon after it by
-- `group_failures`, which also sees to those that were there before. Whoever is older than this column leaves it empty.
ALTER TABLE _jobs ADD COLUMN fingerprint TEXT;

-- A job that is on its way is in none of these. The first two have all that groups are made of: the column stands behind
-- the wide ones, which nobody should read for it.
CREATE INDEX _jobs_failures ON _jobs (finished_at, fingerprint, topic, id)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_fingerprint ON _jobs (fingerprint, id, finished_at, topic)
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL;
CREATE INDEX _jobs_ungrouped ON _jobs (finished_at)
    WHERE fingerprint IS NULL AND (status = 'failed' OR status = 'expired');
