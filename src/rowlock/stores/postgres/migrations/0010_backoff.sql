-- checksum: 8f81e2b5155b3194515fb18dd11523cef5918b51826ec3c50710742b61b088b2
-- Of the text that databases were migrated with. What it had to say about functions is in functions.sql now.
-- Seconds that a job of this topic waits after its first, second, … charged crash; the last one repeats. Written by workers that
-- know the topic, read by whoever rescues. NULL: the default's.
ALTER TABLE {schema}._jobs_topics ADD COLUMN backoff double precision[];
