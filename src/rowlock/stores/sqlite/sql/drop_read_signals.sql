-- Those that a wait has read which is removed.
DELETE FROM _jobs_signals WHERE job_id = ? AND wait = ? AND wait_n = ?
