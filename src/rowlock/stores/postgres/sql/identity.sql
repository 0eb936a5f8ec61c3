-- With the oids of the database and the table, which a restored dump or a copied database does not share.
SELECT m.value || '@' || d.oid || '.' || m.tableoid
FROM {schema}._jobs_meta m CROSS JOIN pg_catalog.pg_database d
WHERE m.name = $1::text AND d.datname = current_database()
