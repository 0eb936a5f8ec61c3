-- The share of a job that no worker holds, and that has not changed since.
UPDATE _jobs SET share = :share
WHERE id = :id AND updated = :updated AND locked_until IS NULL AND status IN ('pending', 'blocked', 'waiting')
  AND share IS NOT :share
