-- What stands in these lines ($1), as far as `advance` needs it: the head; the first blocked job; and if a job replaces
-- others ($2: at most so many of them), all up to the newest such job. That may be the head: a transaction that commits
-- late brings jobs that are older. The head is locked only if it is to be replaced. It is not waited for: a handler's own
-- transaction may hold it for long. Nor is a job with debounce: its enqueuer's transaction may hold it. Then it is `first`, and
-- not `blocked`.
WITH line AS MATERIALIZED (
    SELECT l.line, r.line_seq AS newest FROM unnest($1::text[]) AS l (line) LEFT JOIN LATERAL (
        SELECT j.line_seq FROM {schema}._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.if_live = 'replace'
        ORDER BY j.line_seq DESC LIMIT 1
    ) r ON true
),
head AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL
          AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested')
    ) h
),
held AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j
        WHERE j.line_seq < l.newest AND j.line = l.line AND j.line IS NOT NULL
          AND j.status IN ('pending', 'processing', 'waiting', 'cancel_requested')
        FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
bounds AS MATERIALIZED (
    SELECT l.line, greatest(l.newest, h.line_seq) AS until FROM line l LEFT JOIN head h
        ON h.line = l.line AND h.if_live = 'replace' AND EXISTS (
            SELECT FROM {schema}._jobs j
            WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.line_seq < h.line_seq)
),
blocked AS MATERIALIZED (
    SELECT h.* FROM bounds l CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked'
          AND j.line_seq <= coalesce(l.until, j.line_seq) AND j.if_live <> 'debounce'
        ORDER BY j.line_seq
        LIMIT CASE WHEN l.until IS NULL THEN 1 ELSE $2::int END
        FOR NO KEY UPDATE
    ) h
),
first AS MATERIALIZED (
    SELECT h.* FROM line l CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j
        WHERE j.line = l.line AND j.line IS NOT NULL AND j.status = 'blocked' AND j.if_live = 'debounce'
        ORDER BY j.line_seq LIMIT 1
    ) h
),
debounced AS MATERIALIZED (
    SELECT h.* FROM first f CROSS JOIN LATERAL (
        SELECT {row} FROM {schema}._jobs j WHERE j.id = f.id::uuid AND j.status = 'blocked' FOR NO KEY UPDATE SKIP LOCKED
    ) h
)
SELECT {locked}, 'head' AS role, head.* FROM head UNION ALL
SELECT {locked}, 'held', held.* FROM held UNION ALL
SELECT {locked}, 'blocked', blocked.* FROM blocked UNION ALL
SELECT {locked}, 'first', first.* FROM first UNION ALL
SELECT {locked}, 'blocked', debounced.* FROM debounced
