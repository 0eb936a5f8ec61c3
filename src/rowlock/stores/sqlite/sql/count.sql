INSERT INTO _jobs_totals (
    topic, completed, failed, expired, cancelled, executions, execution_us, retried, lost, requeued_failed, requeued_expired,
    requeued_cancelled)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (topic) DO UPDATE
SET completed = completed + excluded.completed, failed = failed + excluded.failed, expired = expired + excluded.expired,
    cancelled = cancelled + excluded.cancelled, executions = executions + excluded.executions,
    execution_us = execution_us + excluded.execution_us, retried = retried + excluded.retried,
    lost = lost + excluded.lost, requeued_failed = requeued_failed + excluded.requeued_failed,
    requeued_expired = requeued_expired + excluded.requeued_expired,
    requeued_cancelled = requeued_cancelled + excluded.requeued_cancelled
