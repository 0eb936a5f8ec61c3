archived AS (
    INSERT INTO {schema}._jobs_archive (
        id, created, updated, run_at, expires_at, claimed_at, started_at, finished_at, cancel_requested_at, fire_at,
        timeout, template_version, priority, version, retries, max_retries, crashes, history_dropped, topic, locked_by,
        key, scope, scope_id, step, stage, message, cancel_reason, trace, flow_id, schedule_id, tags, payload, result,
        last_error, history, stray, log, log_dropped)
    SELECT g.id, g.created, (SELECT now FROM settle_clock), g.run_at, g.expires_at, g.claimed_at,
           CASE WHEN d.ran IS NULL THEN g.started_at
                ELSE greatest(g.claimed_at, (SELECT now FROM settle_clock) - d.ran * interval '1 second') END,
           (SELECT now FROM settle_clock), g.cancel_requested_at, g.fire_at,
           g.timeout, g.template_version, g.priority, g.version, g.retries, g.max_retries, g.crashes, g.history_dropped,
           g.topic, g.locked_by, g.key, g.scope, g.scope_id, g.step, g.stage, g.message, g.cancel_reason, g.trace,
           g.flow_id, g.schedule_id, g.tags, g.payload, d.outcome::json, g.last_error, g.history, g.stray, g.log,
           g.log_dropped
    -- A FULL JOIN can't be a nested loop. An inner one becomes that when ANALYZE has met an empty queue: 500 × 500 rows.
    FROM gone g FULL JOIN done d ON d.id = g.id
    WHERE coalesce(g.version, -1) >= 0  -- g is not null, said so that the planner doesn't make it an inner join
    {conflict}
    RETURNING topic, finished_at - started_at AS took, started_at - greatest(run_at, created) AS waited
)
