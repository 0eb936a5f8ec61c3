-- A job leaves its group of failures: when the group was seen first is kept.
INSERT INTO _jobs_first_failures (fingerprint, at) VALUES (?, ?)
ON CONFLICT (fingerprint) DO UPDATE SET at = excluded.at WHERE excluded.at < at
