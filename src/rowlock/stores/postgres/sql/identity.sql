-- The oids of the database and the table are part of it: they differ in a restored dump or a copied database.
SELECT m.value || '@' || d.oid || '.' || m.tableoid
FROM {schema}._jobs_meta m CROSS JOIN pg_catalog.pg_database d
WHERE m.name = $1::text AND d.datname = current_database()
