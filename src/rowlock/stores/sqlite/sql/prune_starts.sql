DELETE FROM _jobs_starts WHERE (rule, value, bucket) IN (
    SELECT rule, value, bucket FROM _jobs_starts WHERE until < :now ORDER BY until LIMIT :limit)
