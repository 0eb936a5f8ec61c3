DELETE FROM _jobs_rollups WHERE (span, topic, at) IN (
    SELECT span, topic, at FROM _jobs_rollups INDEXED BY _jobs_rollups_old
    WHERE span = :span AND at < :since ORDER BY at LIMIT :limit)
