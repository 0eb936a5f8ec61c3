-- Without locks, and without a word on status or version, so that no partial index can tempt the planner.
SELECT id, status, version FROM {schema}._jobs WHERE id = ANY ($1::uuid[])
