INSERT INTO _jobs_steps (
    job_id, name, n, position, function, state, retries, cancelable, version, started_at, finished_at, result, error,
    deadline)
VALUES (:id, :name, :n, :position, :function, :state, :retries, :cancelable, :version, :now - :age,
        CASE WHEN :state NOT IN ('pending', 'running') THEN :now END, :result, :error,
        :now + :lasts)
ON CONFLICT (job_id, name, n) DO UPDATE SET
    position = excluded.position, function = excluded.function, state = excluded.state, retries = excluded.retries,
    cancelable = excluded.cancelable, version = excluded.version, result = excluded.result, error = excluded.error,
    -- A wait, which has a deadline, keeps its start and its deadline.
    started_at = CASE WHEN version = excluded.version AND retries = excluded.retries OR deadline IS NOT NULL THEN started_at
                      ELSE excluded.started_at END,
    finished_at = excluded.finished_at, deadline = coalesce(excluded.deadline, deadline)
WHERE state NOT IN ('succeeded', 'failed')  -- an end stays
    AND NOT (version = excluded.version AND excluded.state = 'running')  -- it may come late: see StepMark
