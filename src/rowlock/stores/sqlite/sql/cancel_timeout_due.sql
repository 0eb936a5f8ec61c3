SELECT {row} FROM _jobs j
LEFT JOIN _jobs_records r ON r.kind = 'template' AND r.id = j.topic || '@' || j.template_version
WHERE j.status = 'cancel_requested'
  AND j.cancel_requested_at < :now - CASE
      WHEN json_type(r.data, '$.template.cancel.grace') IN ('integer', 'real')
      THEN json_extract(r.data, '$.template.cancel.grace') ELSE :grace END * 1000000
  AND (j.step IS NULL OR ({shielded}) IS NOT TRUE)  -- without a lease it is NULL
ORDER BY j.cancel_requested_at LIMIT :limit
