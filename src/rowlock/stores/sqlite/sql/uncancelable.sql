-- Those of these templates whose jobs can't be cancelled once a run has started.
SELECT id FROM _jobs_records
WHERE kind = 'template' AND id IN (SELECT value FROM json_each(?)) AND json_extract(data, '$.template.cancel.supported') = 0
