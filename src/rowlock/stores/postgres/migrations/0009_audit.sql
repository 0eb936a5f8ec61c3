-- What a bulk action did to each job is told apart from what people did, and not among it. `bulk_take` says which one it is, to
-- all statements of its transaction.
ALTER TABLE {schema}._jobs_audit ADD COLUMN bulk uuid;
ALTER TABLE {schema}._jobs_audit ALTER COLUMN bulk SET DEFAULT nullif(current_setting('rowlock.bulk', true), '')::uuid;
CREATE INDEX _jobs_audit_deeds ON {schema}._jobs_audit (id) WHERE bulk IS NULL;
CREATE INDEX _jobs_audit_bulk ON {schema}._jobs_audit (bulk, id) WHERE bulk IS NOT NULL;
