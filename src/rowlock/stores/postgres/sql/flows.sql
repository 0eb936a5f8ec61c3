-- Flows, the newest first: $1 by id, NULL: all; $2: below this id; $3: at most so many; $4: of this name; NULL: any.
WITH f AS MATERIALIZED (
    SELECT id, name, by, jobs, created FROM {schema}._jobs_flows
    WHERE ($1::uuid[] IS NULL OR id = ANY ($1::uuid[])) AND ($2::uuid IS NULL OR id < $2::uuid)
      AND ($4::text IS NULL OR name = $4::text)
    ORDER BY id DESC LIMIT $3::int
)
SELECT f.id::text, f.name, f.by, f.jobs, f.created, c.counts::text, c.untaken, c.held,
       CASE WHEN c.held = 0 THEN 0 ELSE (
           -- Between the end of its parent and its own start, a job is blocked, too. Only this tells it from one that waits.
           SELECT count(*)::int FROM {schema}._jobs j
           WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL AND j.status = 'blocked'
             AND NOT EXISTS (SELECT FROM {schema}._jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold')
             AND NOT EXISTS (
                 SELECT FROM {schema}._jobs_edges e JOIN {schema}._jobs p ON p.id = e.parent
                 WHERE e.child = j.id AND e.call IS NULL AND e.ended IS NULL AND p.status = 'blocked')
       ) END AS moving
FROM f CROSS JOIN LATERAL (
    SELECT coalesce(json_object_agg(s.status, s.n), '{}') AS counts, coalesce(sum(s.untaken), 0)::int AS untaken,
           coalesce(sum(s.held), 0)::int AS held
    FROM (
        SELECT j.status, count(*)::int AS n,
               count(*) FILTER (WHERE j.status = 'cancelled' AND EXISTS (
                   SELECT FROM {schema}._jobs_edges e WHERE e.child = j.id AND e.verdict = 'untaken'))::int AS untaken,
               count(*) FILTER (WHERE j.status = 'blocked' AND EXISTS (
                   SELECT FROM {schema}._jobs_edges e WHERE e.child = j.id AND e.verdict = 'hold'))::int AS held
        FROM {schema}._jobs j WHERE j.flow_id = f.id AND j.flow_id IS NOT NULL GROUP BY j.status
        UNION ALL
        SELECT 'completed', count(*)::int, 0, 0 FROM {schema}._jobs_archive a
        WHERE a.flow_id = f.id AND a.flow_id IS NOT NULL HAVING count(*) > 0
    ) s
) c
ORDER BY f.id DESC
