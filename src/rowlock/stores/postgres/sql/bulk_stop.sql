-- The process that runs a batch has locked the row: this statement waits for the end of the batch.
WITH stopped AS (
    UPDATE {schema}._jobs_bulk SET status = 'stopped', finished_at = clock_timestamp()
    WHERE id = $1::uuid AND status = 'running'
    RETURNING *
),
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, reason, data)
    SELECT finished_at, $2::text, 'bulk_stop', $3::text, json_build_object(
        'bulk', id, 'done', done, 'left', total - done - changed - gone - key_taken - locked)
    FROM stopped
)
SELECT 1 FROM stopped
