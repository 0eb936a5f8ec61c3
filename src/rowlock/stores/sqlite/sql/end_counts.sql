-- What there is, up to a bound, and what was counted, in one snapshot. What was pruned or deleted stays counted.
SELECT (SELECT count(*) FROM (SELECT 1 FROM _jobs_archive LIMIT :limit)), coalesce(sum(completed), 0),
       (SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_dead
                              WHERE finished_at IS NOT NULL AND status = 'failed' LIMIT :limit)), coalesce(sum(failed), 0),
       (SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_dead
                              WHERE finished_at IS NOT NULL AND status = 'expired' LIMIT :limit)), coalesce(sum(expired), 0),
       (SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_dead
                              WHERE finished_at IS NOT NULL AND status = 'cancelled' LIMIT :limit)), coalesce(sum(cancelled), 0)
FROM _jobs_totals WHERE topic = ''
