-- insert.sql for a job that stands in a line, belongs to a flow, or has a share. It may be blocked until `advance` (lines.py) unblocks it.
INSERT INTO _jobs (id, topic, template_version, ready, priority, max_retries, timeout, created, updated, run_at, payload,
                   expires_at, key, scope, scope_id, trace, tags, stray, if_live, line, line_seq, flow_id, status, share)
VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
