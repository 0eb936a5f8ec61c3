-- Writes patches (core.moves) for rows that this transaction has locked. Equal patches come once: what 1,000 jobs of a fan-out get
-- is parsed once.
-- $1: [[ids, places, archived, columns, entry], …]. The ids and the places of the rows stand in one text each. `archived`: they are
-- in the archive. `columns`: to set (null: delete the rows). `entry`: for their histories (null: none).
WITH c AS MATERIALIZED (
    SELECT c->>0 AS ids, c->>1 AS places, (c->>2)::bool AS archived, (c->>3)::jsonb AS change, (c->>4)::jsonb AS entry
    FROM json_array_elements($1::text::json) AS c
),
patch AS MATERIALIZED (
    SELECT c.ids, c.places, c.archived, c.change IS NULL AS deletes, c.change ? 'to_end' AS to_end, c.entry,
        {values}
    FROM c
),
p AS MATERIALIZED (
    SELECT s.id, s.place::tid AS tid, patch.archived, patch.deletes, patch.to_end, patch.entry,
        {names}
    FROM patch CROSS JOIN LATERAL unnest(
        string_to_array(patch.ids, ' ')::uuid[], string_to_array(patch.places, ' ')) AS s (id, place)
),
moved AS (
    UPDATE {schema}._jobs j SET
        {set},
        line_seq = CASE WHEN p.to_end THEN nextval('{schema}._jobs_line_seq') ELSE j.line_seq END,
        history_dropped = j.history_dropped + CASE WHEN p.entry IS NULL THEN 0 ELSE {schema}._jobs_overflow(j.history) END,
        history = CASE WHEN p.entry IS NULL THEN j.history ELSE {schema}._jobs_append(j.history, p.entry) END
    FROM p
    -- Not by id: a plan that was made while the table was empty would read the primary key from end to end.
    WHERE NOT p.deletes AND j.ctid = p.tid
    RETURNING j.id
),
gone AS (
    DELETE FROM {schema}._jobs
    WHERE ctid = ANY (ARRAY(SELECT tid FROM p WHERE deletes AND NOT archived)) RETURNING id, key
),
-- Each part of the archive has ctids of its own: IS TRUE keeps `IN` a mere filter.
gone_archived AS (
    DELETE FROM {schema}._jobs_archive
    WHERE ctid = ANY (ARRAY(SELECT tid FROM p WHERE archived)) AND (id IN (SELECT id FROM p WHERE archived)) IS TRUE
    RETURNING id, key
),
-- $11: the lines in which a job has ended, or has come to the end of the line.
ends AS (INSERT INTO {schema}._jobs_ends (line) SELECT DISTINCT line FROM unnest($11::text[]) AS l (line)),
-- A job that is deleted no longer counts. Not one without a key: it may have the id of a pruned job that still counts.
freed AS (
    DELETE FROM {schema}._jobs_once WHERE job_id = ANY (ARRAY(
        SELECT id FROM gone WHERE key IS NOT NULL UNION ALL SELECT id FROM gone_archived WHERE key IS NOT NULL))
),
-- $2: what is counted, by topic.
counted AS (
    INSERT INTO {schema}._jobs_counts (at, topic, {counters})
    SELECT clock_timestamp(), c.* FROM json_to_recordset($2::text::json) AS c (topic text, {counter_types})
),
-- $3, $4: the groups of failures that jobs leave. In order, and only what is new: others may requeue jobs of the same groups.
seen AS (
    INSERT INTO {schema}._jobs_first_failures AS f (fingerprint, at)
    SELECT fingerprint, {schema}._jobs_time(min(at)) FROM unnest($3::text[], $4::bigint[]) AS k (fingerprint, at)
    GROUP BY fingerprint
    HAVING NOT EXISTS (SELECT FROM {schema}._jobs_first_failures o
                       WHERE o.fingerprint = k.fingerprint AND o.at <= {schema}._jobs_time(min(k.at)))
    ORDER BY fingerprint
    ON CONFLICT (fingerprint) DO UPDATE SET at = least(f.at, excluded.at)
),
-- $5–$10: the lines of the audit: when, by whom, what, why, in which bulk action; and of which jobs.
audited AS (
    INSERT INTO {schema}._jobs_audit (at, by, action, reason, bulk, job_id, topic, data)
    SELECT {schema}._jobs_time($5::bigint), $6::text, $7::text, $8::text, $9::uuid, a.*
    FROM json_to_recordset($10::text::json) AS a (job_id uuid, topic text, data json) ORDER BY a.job_id
)
SELECT (SELECT count(*) FROM moved) + (SELECT count(*) FROM gone) + (SELECT count(*) FROM gone_archived)
