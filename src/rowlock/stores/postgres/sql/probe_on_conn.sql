-- What a caller's connection can see and do. It reads the catalogue only, because an error (a missing table, a missing
-- privilege) would abort the caller's transaction. to_regclass raises one, too, without USAGE on the schema.
SELECT json_build_object(
    'database', current_database(),
    'role', current_user,
    'read_only', current_setting('transaction_read_only') = 'on',
    'tables', jobs.oid IS NOT NULL AND meta.oid IS NOT NULL,
    'allowed', has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(meta.oid, 'SELECT')
               AND has_table_privilege(jobs.oid, 'SELECT') AND has_table_privilege(jobs.oid, 'INSERT')
)::text
FROM (SELECT $1::text AS name) s
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.name
LEFT JOIN pg_catalog.pg_class jobs ON jobs.relnamespace = n.oid AND jobs.relname = '_jobs'
LEFT JOIN pg_catalog.pg_class meta ON meta.relnamespace = n.oid AND meta.relname = '_jobs_meta'
