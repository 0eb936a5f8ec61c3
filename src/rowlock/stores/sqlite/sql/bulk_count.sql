UPDATE _jobs_bulk
SET done = done + :done, changed = changed + :changed, gone = gone + :gone, key_taken = key_taken + :key_taken,
    reached = coalesce(:reached, reached), moved_at = :now,
    status = iif(:every > 0 AND done + changed + gone + key_taken + locked + :every < total, status, 'done'),
    finished_at = iif(:every > 0 AND done + changed + gone + key_taken + locked + :every < total, NULL, :now)
WHERE id = :id
