-- What core.moves must know of waits (WaitFacts), of jobs that are locked. A statement of its own, because one that waited
-- for the lock would not see what was written meanwhile.
-- $2, $3: name and number of a callback; NULL: those of the signal that the job waits for, if they have no answer yet. $4: the id of a signal, or NULL.
-- $5: at most so many unread signals are counted. LIMIT 1 in place of EXISTS: for an EXISTS the planner may read the whole table
-- into a hash table.
SELECT j.id, unread.n, known.yes, callback.n > 0, CASE WHEN NOT callback.endless THEN {schema}._jobs_us(callback.until) END,
       undoes.yes, terms.text
FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT id, waits_for FROM {schema}._jobs WHERE id = asked.id
) j
CROSS JOIN LATERAL (
    SELECT count(*)::int AS n FROM (
        SELECT FROM {schema}._jobs_signals s WHERE s.job_id = j.id AND s.wait IS NULL LIMIT $5::int) u
) unread
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT true FROM {schema}._jobs_signals s
                     WHERE s.job_id = j.id AND s.signal_id = $4::text AND s.signal_id IS NOT NULL LIMIT 1), false) AS yes
) known
CROSS JOIN LATERAL (
    SELECT count(*) AS n, bool_or(s.deadline IS NULL) AS endless, max(s.deadline) AS until FROM {schema}._jobs_steps s
    WHERE s.job_id = j.id AND s.name = coalesce($2::text, '@callback:' || substr(j.waits_for, length('signal:') + 1))
      AND s.n = coalesce($3::int, s.n)
      AND ($3::int IS NOT NULL OR NOT EXISTS (SELECT FROM {schema}._jobs_signals g
                                              WHERE g.job_id = j.id AND g.signal_id = s.name || '#' || s.n))
) callback
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT true FROM {schema}._jobs_steps s
                     WHERE s.job_id = j.id AND s.state = 'succeeded' AND s.name NOT LIKE '@%' LIMIT 1), false) AS yes
) undoes
LEFT JOIN LATERAL (
    SELECT s.result::text AS text FROM {schema}._jobs_steps s
    WHERE s.job_id = j.id AND s.name = '@' || j.waits_for AND s.state = 'running' ORDER BY s.n LIMIT 1
) terms ON true
