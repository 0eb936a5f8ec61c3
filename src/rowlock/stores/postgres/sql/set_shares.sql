-- The shares ($3) of jobs ($1) that no worker holds, and that have not changed since ($2).
WITH locked AS MATERIALIZED (
    SELECT h.tid, s.share FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS s (id, updated, share) CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.id = s.id AND j.updated = s.updated AND j.locked_until IS NULL
          AND j.status IN ('pending', 'blocked', 'waiting') AND j.share IS DISTINCT FROM s.share
        FOR UPDATE SKIP LOCKED
    ) h
)
UPDATE {schema}._jobs j SET share = l.share FROM locked l WHERE j.ctid = l.tid
