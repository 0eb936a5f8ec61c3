-- Completed jobs, guarded by status (a lease says it), version AND worker (NULL: any worker). settle_delete takes them out of _jobs.
-- :rows is [[id, version, result, microseconds that the handler ran, or null if it never started], …]
INSERT INTO _jobs_archive (updated, started_at, finished_at, result, {copied})
SELECT :now, coalesce(max(j.claimed_at, :now - json_extract(s.value, '$[3]')), j.started_at), :now,
       json_extract(s.value, '$[2]'), {values}
FROM json_each(:rows) s CROSS JOIN _jobs j ON j.id = json_extract(s.value, '$[0]')
WHERE version = json_extract(s.value, '$[1]') AND (:worker IS NULL OR locked_by = :worker)
  AND locked_until IS NOT NULL AND (line IS NULL OR :lined)
-- Only a caller's own id that was used twice can be there already: its first completion stands.
ON CONFLICT (id) DO NOTHING
