UPDATE _jobs_bulk_items SET outcome = :outcome, holder = :holder WHERE bulk_id = :id AND job_id = :job_id
