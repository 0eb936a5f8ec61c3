SELECT waits, runs FROM _jobs_rollups WHERE span = ? AND topic = ? AND at = ?
