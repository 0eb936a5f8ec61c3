-- Without locks, and without a word on status, version or worker, so that no partial index can tempt the planner.
SELECT id, status, version, locked_by FROM {schema}._jobs WHERE id = ANY ($1::uuid[])
