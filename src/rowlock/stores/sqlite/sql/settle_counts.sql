-- What was just archived, by topic: how many, how many of them have a beginning, and for how long these ran. Not by the
-- index on topics, which would be read from end to end.
SELECT topic, count(*), count(started_at), coalesce(sum(finished_at - started_at), 0)
FROM _jobs_archive NOT INDEXED WHERE n > ? GROUP BY topic
