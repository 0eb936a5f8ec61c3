SELECT log, log_dropped FROM {schema}._jobs WHERE id = $1::uuid
UNION ALL
(SELECT log, log_dropped FROM {schema}._jobs_archive WHERE id >= $1::uuid AND id <= $1::uuid ORDER BY id LIMIT 1)  -- see get.sql
