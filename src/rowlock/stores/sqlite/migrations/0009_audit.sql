-- What a bulk action did to each job is told apart from what people did, and not among it.
ALTER TABLE _jobs_audit ADD COLUMN bulk TEXT;
CREATE INDEX _jobs_audit_deeds ON _jobs_audit (id) WHERE bulk IS NULL;
CREATE INDEX _jobs_audit_bulk ON _jobs_audit (bulk, id) WHERE bulk IS NOT NULL;
