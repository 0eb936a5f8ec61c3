INSERT INTO _jobs_meta (name, value) VALUES ('file', ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
