SELECT n, log FROM {table} WHERE n IN (SELECT value FROM json_each(?))
