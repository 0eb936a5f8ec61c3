-- Not a plain INSERT: an archived job may have had the same id, whose signals are of no use any more.
INSERT OR REPLACE INTO _jobs_signals (job_id, seq, name, signal_id, data, at, "by")
VALUES (:id, :seq, :name, :signal_id, :data, :now, :by)
