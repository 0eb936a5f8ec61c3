-- What is stored of jobs' steps (docs/steps.md). Only jobs whose `step` is not NULL have rows here.
CREATE TABLE {schema}._jobs_steps (
    job_id      uuid NOT NULL,
    name        text COLLATE "C" NOT NULL,
    n           integer NOT NULL,      -- the n-th call of this name
    position    integer NOT NULL,      -- among all steps of the job, in the order of their calls
    function    text NOT NULL,
    state       text NOT NULL,
    retries     integer NOT NULL,
    cancelable  boolean NOT NULL,
    version     integer NOT NULL,      -- the run that wrote it last
    started_at  timestamptz NOT NULL,
    finished_at timestamptz,
    result      json,
    error       text,
    CONSTRAINT _jobs_steps_state CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')),
    PRIMARY KEY (job_id, name, n)
) PARTITION BY RANGE (job_id);
CREATE TABLE {schema}._jobs_steps_rest PARTITION OF {schema}._jobs_steps DEFAULT;

-- The same days as the archive has, so that a day of both can be dropped together.
DO $$
DECLARE
    day timestamp;
BEGIN
    FOR day IN SELECT to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp FROM pg_catalog.pg_inherits i
               JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = '{schema}._jobs_archive'::regclass AND c.relname ~ '^_jobs_archive_[0-9]{8}$' ORDER BY 1
    LOOP
        EXECUTE format(
            'CREATE TABLE {schema}.%I PARTITION OF {schema}._jobs_steps FOR VALUES FROM (%L) TO (%L)',
            '_jobs_steps_' || to_char(day, 'YYYYMMDD'), {schema}._jobs_first_id(day AT TIME ZONE 'UTC'),
            {schema}._jobs_first_id((day + interval '1 day') AT TIME ZONE 'UTC'));
    END LOOP;
END $$;

-- Roles that may settle jobs by SQL (docs/sql.md) may store their steps as well.
DO $$
DECLARE
    role record;
BEGIN
    FOR role IN SELECT DISTINCT g.grantee FROM information_schema.role_table_grants g
                WHERE format('%I', g.table_schema) || '.' || g.table_name = '{schema}._jobs' AND g.privilege_type = 'DELETE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}._jobs_steps TO %s',
                       CASE role.grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(role.grantee) END);
    END LOOP;
END $$;
