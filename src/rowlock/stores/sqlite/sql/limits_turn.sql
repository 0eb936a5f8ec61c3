UPDATE _jobs_limits SET epoch = epoch + 1, turns = coalesce(?, turns)
