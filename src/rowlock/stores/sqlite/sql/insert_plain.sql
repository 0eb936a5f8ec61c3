-- The same without what most jobs don't have: each NULL that is bound costs as much as three values.
INSERT INTO _jobs (id, topic, template_version, ready, priority, max_retries, timeout, created, updated, run_at, payload)
VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
