INSERT INTO _jobs_once (line, job_id, at) VALUES (?, ?, ?) ON CONFLICT (line) DO NOTHING
