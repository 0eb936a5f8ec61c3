INSERT INTO _jobs_flows (id, name, "by", jobs, nodes, created, looked)
VALUES (:id, :name, :by, :jobs, :nodes, :now, :now)
ON CONFLICT (id) DO UPDATE SET jobs = jobs + :more WHERE :more > 0
