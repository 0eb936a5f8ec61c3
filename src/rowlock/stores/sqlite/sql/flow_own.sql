-- The job is the owner of children from now on: it belongs to the flow, and its end is noted.
UPDATE _jobs SET flow_id = coalesce(flow_id, :flow_id), line = coalesce(line, :line) WHERE id = :id RETURNING line
