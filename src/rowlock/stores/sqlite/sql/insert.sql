-- A job with this id, or a live one with this key, stays as it is.
INSERT INTO _jobs (id, topic, template_version, ready, priority, max_retries, timeout, created, updated, run_at,
                   expires_at, key, scope, scope_id, trace, tags, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
