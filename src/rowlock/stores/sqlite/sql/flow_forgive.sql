-- A person wants this job to run: parents that have ended don't keep it from it.
UPDATE _jobs_edges SET verdict = 'pass' WHERE child = ? AND call IS NULL AND ended IS NOT NULL
