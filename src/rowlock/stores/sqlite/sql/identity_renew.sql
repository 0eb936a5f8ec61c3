UPDATE _jobs_meta SET value = lower(hex(randomblob(16))) WHERE name = 'identity'
