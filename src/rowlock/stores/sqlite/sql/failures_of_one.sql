SELECT finished_at, fingerprint, topic, id FROM _jobs INDEXED BY _jobs_fingerprint
    WHERE fingerprint = :fingerprint AND finished_at IS NOT NULL AND finished_at >= :since
    ORDER BY id DESC LIMIT :bound