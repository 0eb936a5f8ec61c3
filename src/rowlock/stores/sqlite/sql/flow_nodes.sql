SELECT nodes FROM _jobs_flows WHERE id = ?
