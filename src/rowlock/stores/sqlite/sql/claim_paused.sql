SELECT topic FROM _jobs_topics WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > ?)
