-- Seconds that a job of this topic waits after its first, second, … charged crash: a JSON array, the last one repeats. Written by
-- workers that know the topic, read by whoever rescues. NULL: the default's.
ALTER TABLE _jobs_topics ADD COLUMN backoff TEXT;
