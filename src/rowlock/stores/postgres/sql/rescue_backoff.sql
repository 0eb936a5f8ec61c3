SELECT topic, backoff FROM {schema}._jobs_topics WHERE backoff IS NOT NULL
