INSERT INTO _jobs_edges (child, parent, flow_id, name, line, if_failed, condition, fills, call, place, owner)
VALUES (:child, :parent, :flow_id, :name, :line, :if_failed, :condition, :fills, :call, :place, :owner)
ON CONFLICT DO NOTHING
