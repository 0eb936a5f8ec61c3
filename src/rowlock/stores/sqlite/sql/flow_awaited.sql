SELECT 1 FROM _jobs_edges WHERE line = ? AND parent = ? AND ended IS NULL LIMIT 1
