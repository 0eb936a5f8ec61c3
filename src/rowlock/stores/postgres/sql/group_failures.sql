-- Only jobs that have not changed since their error was read. A job that failed again has another error and another end.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS s (id, at, known) ORDER BY id
),
held AS MATERIALIZED (
    SELECT s.*, h.* FROM s CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.status, j.finished_at, j.fingerprint
        FROM {schema}._jobs j WHERE j.id = s.id FOR NO KEY UPDATE SKIP LOCKED
    ) h
),
ok AS MATERIALIZED (
    SELECT * FROM held WHERE status IN ('failed', 'expired') AND finished_at = at AND fingerprint IS NULL
)
UPDATE {schema}._jobs j SET fingerprint = ok.known
FROM ok
WHERE j.ctid = ANY (ARRAY(SELECT tid FROM ok)) AND j.id = ok.id
