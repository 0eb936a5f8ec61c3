INSERT INTO _jobs_throttles (line, job_id, at, until) VALUES (?, ?, ?, ?)
ON CONFLICT (line) DO UPDATE SET job_id = excluded.job_id, at = excluded.at, until = excluded.until
