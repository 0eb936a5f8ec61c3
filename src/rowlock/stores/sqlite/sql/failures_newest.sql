SELECT finished_at, fingerprint, topic, id FROM _jobs INDEXED BY _jobs_failures
    WHERE fingerprint IS NOT NULL AND finished_at IS NOT NULL AND finished_at >= :since
      AND (:topics IS NULL OR topic IN (SELECT value FROM json_each(:topics)))
    ORDER BY finished_at DESC LIMIT :bound