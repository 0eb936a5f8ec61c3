-- What is about to be claimed, in the order of :rows, as two JSON texts: for each row that is fetched, and for each of
-- its columns, Python takes longer than SQLite, and between rows it lets other threads go first. The payload is JSON as
-- it is. What the claim sets needs no answer; columns that most jobs don't use come as one. A timeout that is no whole
-- number would lose digits in JSON: see claim_timeouts.
SELECT CAST('[' || group_concat(json_array(
           j.id, topic, template_version, priority, run_at, retries, max_retries, crashes,
           CASE WHEN timeout = CAST(timeout AS INTEGER) THEN CAST(timeout AS INTEGER) END, version + 1, created,
           CASE WHEN coalesce(history, last_error, j.key, scope, scope_id, tags, trace, expires_at, step, result,
                              cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at) IS NOT NULL
                THEN json_array(expires_at, j.key, scope, scope_id, json(tags), trace, step, json(result), last_error,
                                cancel_requested_at, cancel_reason, flow_id, schedule_id, fire_at,
                                coalesce(json_array_length(history), 0) + history_dropped) END)) || ']' AS BLOB),
       CAST('[' || group_concat(payload) || ']' AS BLOB)
FROM json_each(:rows) i CROSS JOIN _jobs j ON j.n = i.value
