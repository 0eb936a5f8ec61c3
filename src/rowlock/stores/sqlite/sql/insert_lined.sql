-- insert.sql for a job that stands in a line: it is blocked until `advance` (lines.py) makes it the head.
INSERT INTO _jobs (id, topic, template_version, ready, priority, max_retries, timeout, created, updated, run_at, payload,
                   expires_at, key, scope, scope_id, trace, tags, stray, if_live, line, line_seq, status)
VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'blocked')
ON CONFLICT DO NOTHING
