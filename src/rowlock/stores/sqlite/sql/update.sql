UPDATE _jobs
SET priority = :priority, run_at = :run_at, ready = :ready, payload = coalesce(:payload, payload), tags = :tags,
    updated = :now
WHERE n = :n
