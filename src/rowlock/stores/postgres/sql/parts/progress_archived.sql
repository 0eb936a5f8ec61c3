-- Lines that a run has logged before it completed its job in its own transaction. They reach the store when the job is
-- archived. Guarded by version AND worker (NULL: any worker): the archived row has those of the run that completed it.
WITH s AS MATERIALIZED (
    SELECT id, run, worker, lines::jsonb AS lines, clock_timestamp() AS now
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) AS s (id, run, worker, lines)
)
UPDATE {schema}._jobs_archive j SET
        {added}
FROM s
WHERE j.id = ANY (ARRAY(SELECT id FROM s)) AND j.id = s.id
  AND j.version = s.run AND (s.worker IS NULL OR s.worker = j.locked_by)
