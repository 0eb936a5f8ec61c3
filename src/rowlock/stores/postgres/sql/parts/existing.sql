-- The job that answers instead of a new one: any with this id, else the live one with this key.
SELECT s.n, coalesce(i.id, k.id) AS id, coalesce(i.status, k.status) AS status,
       coalesce(i.run_at, k.run_at) AS run_at, coalesce(i.created, k.created) AS created
FROM {asked}
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM {schema}._jobs_all j
    WHERE j.id >= s.id AND j.id <= s.id ORDER BY j.id LIMIT 1  -- by a range: see read.sql
) i ON true
LEFT JOIN LATERAL (
    SELECT id, status, run_at, created FROM {schema}._jobs j
    WHERE j.topic = s.topic AND j.key = s.key AND j.key IS NOT NULL AND j.line_seq IS NULL
      AND {schema}._jobs_short(j.scope) = {schema}._jobs_short(s.scope)
      AND {schema}._jobs_short(j.scope_id) = {schema}._jobs_short(s.scope_id)
      AND j.status IN ('pending', 'blocked', 'processing', 'waiting', 'cancel_requested')
    LIMIT 1
) k ON i.id IS NULL
WHERE coalesce(i.id, k.id) IS NOT NULL
