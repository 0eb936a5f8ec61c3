DELETE FROM _jobs_throttles WHERE line IN (SELECT line FROM _jobs_throttles WHERE until <= :now LIMIT :limit)
