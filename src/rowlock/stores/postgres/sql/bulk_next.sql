-- The next jobs, locked in the order of ids as every verb does it. `same`: it has not moved since the preview.
WITH i AS MATERIALIZED (
    SELECT * FROM {schema}._jobs_bulk_items
    WHERE bulk_id = $1::uuid AND job_id >= $2::uuid ORDER BY job_id LIMIT $3::int
),
held AS MATERIALIZED (
    SELECT h.* FROM i CROSS JOIN LATERAL (
        SELECT j.id, j.topic, j.scope, j.scope_id, j.key, j.status = i.status AND j.created = i.created
               AND j.version + coalesce(jsonb_array_length(j.history), 0) + j.history_dropped = i.events AS same
        FROM {schema}._jobs j WHERE j.id = i.job_id FOR NO KEY UPDATE
    ) h
)
SELECT i.job_id, i.status = 'completed' AS archived, held.id IS NOT NULL AS live, held.same,
       held.topic, held.scope, held.scope_id, held.key
FROM i LEFT JOIN held ON held.id = i.job_id
ORDER BY i.job_id
