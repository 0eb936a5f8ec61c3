SELECT id FROM _jobs_bulk WHERE iif(status = 'preview', created <= :preview, finished_at <= :ended) ORDER BY id LIMIT 10
