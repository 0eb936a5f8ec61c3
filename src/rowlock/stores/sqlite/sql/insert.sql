-- A job with this id, or a live one with this key, stays as it is. (insert.py repeats the line of VALUES.)
INSERT INTO _jobs (id, topic, template_version, ready, priority, max_retries, timeout, created, updated, run_at, payload,
                   expires_at, key, scope, scope_id, trace, tags, stray)
VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
