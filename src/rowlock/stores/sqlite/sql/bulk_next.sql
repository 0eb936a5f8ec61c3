-- The next jobs. `same`: it has not moved since the preview; NULL: it is gone. One id may stand in both tables.
SELECT i.job_id,
       CASE WHEN j.n IS NOT NULL THEN j.status = i.status AND j.created = i.created
                AND j.version + coalesce(json_array_length(j.history), 0) + j.history_dropped = i.events
            WHEN a.n IS NOT NULL THEN i.status = 'completed' AND a.created = i.created
                AND a.version + coalesce(json_array_length(a.history), 0) + a.history_dropped = i.events END
FROM _jobs_bulk_items i LEFT JOIN _jobs j ON j.id = i.job_id LEFT JOIN _jobs_archive a ON a.id = i.job_id
WHERE i.bulk_id = :id AND i.job_id > :after
ORDER BY i.job_id
LIMIT :limit
