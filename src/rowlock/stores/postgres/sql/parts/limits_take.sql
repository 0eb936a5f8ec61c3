-- Claims these jobs ($3) of limited topics, if nothing was claimed since the claim was decided ($1: the epoch of then). $2: whose
-- turn it was last. $4–$6: worker, lease, start mark. $7: not after this time. $8: starts of rates, as JSON; their `bucket` is the end of the part of a window. $9: a job is only taken if
-- it still has this share; the empty text: none; NULL: any.
WITH
turn AS MATERIALIZED (
    UPDATE {schema}._jobs_limits SET epoch = epoch + 1, turns = $2::text::json
    WHERE epoch = $1::bigint AND clock_timestamp() <= coalesce($7::timestamptz, 'infinity') RETURNING epoch
),
locked AS MATERIALIZED (
    SELECT h.tid FROM turn CROSS JOIN unnest($3::uuid[], $9::text[]) AS s (id, share) CROSS JOIN LATERAL (
        SELECT j.ctid AS tid FROM {schema}._jobs j
        WHERE j.id = s.id AND j.ready AND (s.share IS NULL OR coalesce(j.share, '') = s.share)
          -- It may have been paused since the claim was decided.
          AND j.topic <> ALL (ARRAY(
              SELECT topic FROM {schema}._jobs_topics
              WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp()))))
        FOR UPDATE OF j SKIP LOCKED
    ) h
),
claim_clock AS MATERIALIZED (
    SELECT now, now + $5::float8 * interval '1 second' AS until FROM (SELECT clock_timestamp() AS now FROM turn) c
),
claimed AS (
    UPDATE {schema}._jobs j SET
        status = CASE status WHEN 'pending' THEN 'processing' ELSE status END, ready = false, version = version + 1,
        locked_by = $4::text, locked_until = (SELECT until FROM claim_clock), claimed_at = (SELECT now FROM claim_clock),
        started_at = CASE WHEN $6::bool THEN (SELECT now FROM claim_clock) END,
        progress = CASE WHEN step IS NULL THEN 0 ELSE progress END, stage = NULL, message = NULL,
        updated = (SELECT now FROM claim_clock)
    WHERE ctid = ANY (ARRAY(SELECT tid FROM locked))
    RETURNING {columns}
),
counted AS (
    INSERT INTO {schema}._jobs_starts AS k (rule, value, bucket, n, at, until)
    SELECT s.rule, s.value, ({schema}._jobs_us(now) / s.width + 1) * s.width - 1, s.n, now, now + s.length * interval '1 microsecond'
    FROM claim_clock, json_to_recordset($8::text::json) AS s (rule text, value text, n int, width bigint, length bigint)
    ON CONFLICT (rule, value, bucket) DO UPDATE SET n = k.n + excluded.n, at = greatest(k.at, excluded.at),
        until = greatest(k.until, excluded.until)
)
SELECT NULL::int[] AS seen, NULL::float8 AS next_due, now, until, NULL::uuid[] AS applied, {nulls} FROM claim_clock
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, j.* FROM claimed j
