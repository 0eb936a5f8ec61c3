-- Without locks. Conditions on status, version or worker would let the planner choose a partial index.
SELECT id, status, version, locked_by FROM {schema}._jobs WHERE id = ANY ($1::uuid[])
