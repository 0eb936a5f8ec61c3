DELETE FROM _jobs_archive WHERE n > ?
