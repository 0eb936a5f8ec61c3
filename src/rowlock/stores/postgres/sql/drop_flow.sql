-- Removes a flow that has no job any more.
WITH gone AS (
    DELETE FROM {schema}._jobs_flows f
    WHERE f.id = $1::uuid AND NOT EXISTS (SELECT FROM {schema}._jobs j WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL)
      AND NOT EXISTS (SELECT FROM {schema}._jobs_archive a WHERE a.flow_id = f.id AND a.flow_id IS NOT NULL)
    RETURNING f.id
)
DELETE FROM {schema}._jobs_edges WHERE flow_id = ANY (ARRAY(SELECT id FROM gone))
