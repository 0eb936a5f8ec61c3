SELECT topic, backoff FROM _jobs_topics WHERE backoff IS NOT NULL
