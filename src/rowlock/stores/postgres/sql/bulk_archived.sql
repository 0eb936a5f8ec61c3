-- Those that are not among the live ones, by a later snapshot.
SELECT a.id, i.status = 'completed' AND a.created = i.created
       AND a.version + coalesce(jsonb_array_length(a.history), 0) + a.history_dropped = i.events AS same
FROM {schema}._jobs_bulk_items i CROSS JOIN LATERAL (
    SELECT * FROM {schema}._jobs_archive a WHERE a.id = i.job_id
) a
WHERE i.bulk_id = $1::uuid AND i.job_id = ANY ($2::uuid[])
