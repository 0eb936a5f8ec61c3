SELECT s.job_id, s.name, s.n, s.position, s.state FROM json_each(:ids) i CROSS JOIN _jobs_steps s ON s.job_id = i.value
ORDER BY s.job_id, s.position, s.name, s.n
