SELECT n, log FROM _jobs WHERE n IN (SELECT value FROM json_each(?))
