UPDATE _jobs_flows SET looked = :now WHERE id = :id
