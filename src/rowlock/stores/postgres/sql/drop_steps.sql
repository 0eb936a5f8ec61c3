-- With the signals that these waits have read: their ids are free again.
WITH dropped AS MATERIALIZED (SELECT * FROM unnest($2::text[], $3::int[]) AS d (name, n)),
signals AS (
    DELETE FROM {schema}._jobs_signals WHERE job_id = $1::uuid AND (wait, wait_n) IN (SELECT name, n FROM dropped)
)
DELETE FROM {schema}._jobs_steps WHERE job_id = $1::uuid AND (name, n) IN (SELECT name, n FROM dropped)
