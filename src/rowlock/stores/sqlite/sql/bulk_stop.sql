UPDATE _jobs_bulk SET status = 'stopped', finished_at = :now WHERE id = :id AND status = 'running'
