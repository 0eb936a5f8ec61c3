-- The run must hold its job. Its job is the owner of children from now on: it belongs to the flow, and its end is noted. Nothing
-- is written if the job is being cancelled.
WITH held AS MATERIALIZED (
    SELECT j.ctid AS tid, j.status, j.version, j.locked_by FROM {schema}._jobs j WHERE j.id = $1::uuid FOR NO KEY UPDATE
),
run AS MATERIALIZED (
    SELECT tid, status FROM held
    WHERE version = $2::int AND locked_by = coalesce($3::text, locked_by) AND status IN ('processing', 'cancel_requested')
),
owned AS (
    UPDATE {schema}._jobs j SET flow_id = coalesce(j.flow_id, $4::uuid),
           line = coalesce(j.line, replace(j.id::text, '-', '') || ':job')
    WHERE j.ctid = ANY (ARRAY(SELECT tid FROM run WHERE status = 'processing')) RETURNING j.line
)
SELECT (SELECT line FROM owned), status FROM run
