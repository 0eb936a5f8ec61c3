-- Jobs by id, for guards that are judged outside: settle, heartbeat, progress.
SELECT j.id, j.n, j.status, j.version, j.locked_by, j.claimed_at, j.started_at, j.topic,
       max(j.run_at, j.created) AS due, j.line, j.locked_until IS NOT NULL, coalesce(j.signals, 0)
FROM json_each(?) i CROSS JOIN _jobs j ON j.id = i.value
