-- The head of one lane, in order, read from the claim index alone; as one JSON text, see claim_rows.
SELECT CAST('[' || group_concat(json_array(-priority, run_at, id, n)) || ']' AS BLOB)
FROM (SELECT priority, run_at, id, n FROM _jobs
      WHERE ready AND topic = ? AND template_version = ? AND (expires_at IS NULL OR expires_at > ?)
      ORDER BY priority DESC, run_at, id
      LIMIT ? OFFSET ?)
