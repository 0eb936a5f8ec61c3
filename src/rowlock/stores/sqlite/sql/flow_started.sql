SELECT child, parent FROM _jobs_edges WHERE owner = ? AND owner IS NOT NULL AND call IS NOT NULL ORDER BY child, place
