-- SKIP LOCKED: another process removes the row, too, or its worker has just reported.
WITH gone AS MATERIALIZED (
    SELECT ctid AS tid FROM {schema}._jobs_workers WHERE name = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}._jobs_workers WHERE ctid = ANY (ARRAY(SELECT tid FROM gone))
