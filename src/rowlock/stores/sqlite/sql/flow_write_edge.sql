UPDATE _jobs_edges SET fills = ?, ended = ?, verdict = ?, result = ?, error = ? WHERE child = ? AND parent = ?
