DELETE FROM _jobs_counts WHERE n <= ?
