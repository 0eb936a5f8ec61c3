-- Locks the run's row until the transaction ends, against whoever would take it away: claim, rescue, settle, cancel.
-- If one of them has it, this waits for its commit and reads what it left (READ COMMITTED). Status, version and
-- worker are judged outside, where no partial index can tempt the planner.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_record($1::text::json) AS asked (id uuid, version int, worker text)
),
found AS MATERIALIZED (
    SELECT j.status, j.version, j.locked_by
    FROM {schema}._jobs j WHERE j.id = (SELECT id FROM asked) FOR NO KEY UPDATE
)
SELECT CASE WHEN EXISTS (
    SELECT FROM found JOIN asked USING (version)
    WHERE (asked.worker IS NULL OR asked.worker = found.locked_by)
      AND found.status IN ('processing', 'cancel_requested')
) THEN 'held' ELSE 'lost' END
