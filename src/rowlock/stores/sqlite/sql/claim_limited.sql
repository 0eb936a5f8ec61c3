SELECT topic FROM _jobs_topics WHERE limited
