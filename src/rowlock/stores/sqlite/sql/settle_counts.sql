-- What was just archived, by topic: how many, and of those that have a beginning, for how long they waited and ran, in one
-- text each, which is quicker than a row each. Not by the index on topics, which would be read from end to end.
SELECT topic, count(*), json_group_array(started_at - max(run_at, created)) FILTER (WHERE started_at IS NOT NULL),
       json_group_array(finished_at - started_at) FILTER (WHERE started_at IS NOT NULL)
FROM _jobs_archive NOT INDEXED WHERE n > ? GROUP BY topic
