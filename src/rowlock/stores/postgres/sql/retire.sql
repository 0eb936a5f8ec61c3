-- Who finds a row locked leaves it: another removes it too, or its worker has just shown that it lives.
WITH gone AS MATERIALIZED (
    SELECT ctid AS tid FROM {schema}._jobs_workers WHERE name = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
)
DELETE FROM {schema}._jobs_workers WHERE ctid = ANY (ARRAY(SELECT tid FROM gone))
