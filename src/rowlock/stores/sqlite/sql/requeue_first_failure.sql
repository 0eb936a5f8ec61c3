-- Before its job leaves its group.
INSERT INTO _jobs_first_failures (fingerprint, at)
SELECT fingerprint, finished_at FROM _jobs WHERE n = :n AND fingerprint IS NOT NULL AND finished_at IS NOT NULL
ON CONFLICT (fingerprint) DO UPDATE SET at = excluded.at WHERE excluded.at < at
