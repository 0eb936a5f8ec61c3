-- Note the outcomes of a batch, in the jobs' order. No jobs: the bulk action is done. bulk_take has locked the row.
WITH noted AS (
    UPDATE {schema}._jobs_bulk_items i SET outcome = o.outcome, holder = o.holder
    FROM unnest($2::uuid[], $3::text[], $4::uuid[]) AS o (job_id, outcome, holder)
    WHERE i.bulk_id = $1::uuid AND i.job_id = o.job_id
    RETURNING o.outcome
),
counted AS (
    SELECT count(*) FILTER (WHERE outcome = 'done') AS done, count(*) FILTER (WHERE outcome = 'changed') AS changed,
           count(*) FILTER (WHERE outcome = 'gone') AS gone, count(*) FILTER (WHERE outcome = 'key_taken') AS key_taken,
           count(*) FILTER (WHERE outcome = 'locked') AS locked, count(*) AS every, clock_timestamp() AS now
    FROM noted
)
UPDATE {schema}._jobs_bulk b SET
    done = b.done + c.done, changed = b.changed + c.changed, gone = b.gone + c.gone,
    key_taken = b.key_taken + c.key_taken, locked = b.locked + c.locked, moved_at = c.now,
    reached = coalesce(($2::uuid[])[cardinality($2::uuid[])], b.reached),
    status = CASE WHEN c.every > 0 AND b.done + b.changed + b.gone + b.key_taken + b.locked + c.every < b.total
                  THEN b.status ELSE 'done' END,
    finished_at = CASE WHEN c.every > 0 AND b.done + b.changed + b.gone + b.key_taken + b.locked + c.every < b.total
                       THEN NULL ELSE c.now END
FROM counted c
WHERE b.id = $1::uuid
RETURNING {bulk_columns}
