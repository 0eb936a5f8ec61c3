SELECT n, locked_by FROM _jobs_archive WHERE id = ? AND version = ?
