SELECT value FROM _jobs_meta WHERE name = 'file'
