DELETE FROM _jobs_edges WHERE flow_id = ?
