-- A later run writes a wait again that is still open. It began, and ends, when the first one said.
INSERT INTO _jobs_steps (
    job_id, name, n, position, function, state, retries, cancelable, version, started_at, finished_at, result, error,
    deadline)
VALUES (:id, :name, :n, :position, :name, :state, 0, 1, :version, :now, :finished_at, :result, :error, :deadline)
ON CONFLICT (job_id, name, n) DO UPDATE SET
    position = excluded.position, state = excluded.state, version = excluded.version, result = excluded.result,
    error = excluded.error, finished_at = excluded.finished_at
