-- $4: the number of the callback that is meant. Of waits, those that are open.
UPDATE {schema}._jobs_steps s SET deadline = {schema}._jobs_time(d.at)
FROM unnest($2::text[], $3::bigint[]) AS d (name, at)
WHERE s.job_id = $1::uuid AND s.name = d.name AND (s.state = 'running' OR s.name LIKE '@callback:%' AND s.n = $4::int)
