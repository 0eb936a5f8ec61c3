-- Jobs that have just been archived, by id.
DELETE FROM _jobs WHERE id IN (SELECT value FROM json_each(?))
