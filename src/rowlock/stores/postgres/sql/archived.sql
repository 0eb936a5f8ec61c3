-- What `gone` has deleted, as `held` has locked and read it.
archived AS (
    INSERT INTO {schema}._jobs_archive (
        id, created, updated, run_at, expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at,
        timeout, template_version, priority, version, retries, max_retries, crashes, history_dropped, topic, locked_by,
        key, scope, scope_id, step, stage, message, cancel_reason, trace, flow_id, schedule_id, tags, payload, result,
        last_error, history, stray, log, log_dropped)
    SELECT id, created, (SELECT now FROM settle_clock), run_at, expires_at, claimed_at,
           CASE WHEN ran IS NULL THEN started_at
                ELSE greatest(claimed_at, (SELECT now FROM settle_clock) - ran * interval '1 second') END,
           (SELECT now FROM settle_clock), cancel_requested_at, fire_at,
           timeout, template_version, priority, version, retries, max_retries, crashes, history_dropped, topic, locked_by,
           key, scope, scope_id, step, stage, message, cancel_reason, trace, flow_id, schedule_id, tags, payload,
           outcome::json, last_error, history, stray, log, log_dropped
    FROM held
    -- IS TRUE: so it is a look into a hash table. A join becomes a nested loop when ANALYZE has met an empty queue.
    WHERE (id IN (SELECT id FROM gone)) IS TRUE
    {conflict}
    RETURNING topic, finished_at - started_at AS took
)
