DELETE FROM _jobs_edges WHERE child = ? AND call IS NOT NULL
