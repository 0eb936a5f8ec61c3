-- The head of one lane, read from the claim index alone.
SELECT -priority, run_at, id, n FROM _jobs
WHERE ready AND topic = ? AND template_version = ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY priority DESC, run_at, id
LIMIT ? OFFSET ?
