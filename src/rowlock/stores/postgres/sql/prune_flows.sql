-- Removes flows that have no job any more. Each is looked at once an hour, and not in its first minutes. $1: at most so many.
WITH old AS MATERIALIZED (
    SELECT f.id FROM {schema}._jobs_flows f WHERE f.looked < clock_timestamp() - interval '1 hour'
    ORDER BY f.looked LIMIT $1::int FOR UPDATE SKIP LOCKED
),
gone AS MATERIALIZED (
    SELECT o.id FROM old o
    WHERE NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.flow_id = o.id AND j.flow_id IS NOT NULL)
      AND NOT EXISTS (SELECT FROM {schema}._jobs_archive a WHERE a.flow_id = o.id AND a.flow_id IS NOT NULL)
),
edges AS (DELETE FROM {schema}._jobs_edges WHERE flow_id = ANY (ARRAY(SELECT id FROM gone))),
dropped AS (DELETE FROM {schema}._jobs_flows WHERE id = ANY (ARRAY(SELECT id FROM gone))),
seen AS (
    UPDATE {schema}._jobs_flows SET looked = clock_timestamp()
    WHERE id = ANY (ARRAY(SELECT id FROM old)) AND id <> ALL (ARRAY(SELECT id FROM gone))
)
SELECT count(*)::int FROM old
