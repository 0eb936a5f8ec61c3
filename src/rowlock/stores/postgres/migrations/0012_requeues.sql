-- How many jobs were requeued, by how they had ended: `failed`, `expired` and `cancelled` go down by as many. Their sum never
-- goes down, which is what a counter for alerts must not do. The notes tell it already: those of a requeue are negative.
ALTER TABLE {schema}._jobs_totals
    ADD COLUMN requeued_failed    bigint NOT NULL DEFAULT 0,
    ADD COLUMN requeued_expired   bigint NOT NULL DEFAULT 0,
    ADD COLUMN requeued_cancelled bigint NOT NULL DEFAULT 0;

-- A worker that is older than this would fold the notes of requeues, and not count them. So it finds nothing to fold
-- (as since 0004); a worker that counts requeues says so.
DROP TRIGGER _jobs_keep_note ON {schema}._jobs_counts;
CREATE TRIGGER _jobs_keep_note BEFORE DELETE ON {schema}._jobs_counts FOR EACH ROW
    WHEN (current_setting('application_name') = 'rowlock'
          AND current_setting('rowlock.folds', true) IS DISTINCT FROM 'requeues')
    EXECUTE FUNCTION {schema}._jobs_keep_note();
