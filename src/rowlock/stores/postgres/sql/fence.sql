-- Lock the run's row until the transaction ends, so that no rescue, settle or cancel can end the run meanwhile. If one
-- of them has the lock, this waits for its commit and reads the new row (READ COMMITTED). Status, version and worker are
-- checked outside: here they would let the planner choose a partial index. A waiting job that is being cancelled has no
-- worker, so no run holds it.
WITH asked AS MATERIALIZED (
    SELECT * FROM json_to_record($1::text::json) AS asked (id uuid, version int, worker text)
),
found AS MATERIALIZED (
    SELECT j.status, j.version, j.locked_by
    FROM {schema}._jobs j WHERE j.id = (SELECT id FROM asked) FOR NO KEY UPDATE
)
SELECT CASE WHEN EXISTS (
    SELECT FROM found JOIN asked USING (version)
    WHERE found.locked_by = coalesce(asked.worker, found.locked_by)
      AND found.status IN ('processing', 'cancel_requested')
) THEN 'held' ELSE 'lost' END
