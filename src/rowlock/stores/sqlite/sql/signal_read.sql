UPDATE _jobs_signals SET wait = :name, wait_n = :n WHERE job_id = :id AND seq = :seq
