SELECT epoch, turns FROM _jobs_limits
