DELETE FROM _jobs_edges WHERE child = ?
