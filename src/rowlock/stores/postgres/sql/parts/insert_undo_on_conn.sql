WITH gone AS (
{undo}
)
SELECT coalesce(json_agg(id), '[]')::text FROM gone
