-- Those of these templates whose jobs can't be cancelled once a run has started.
SELECT id FROM {schema}._jobs_records
WHERE kind = 'template' AND id = ANY ($1::text[]) AND data->'template'->'cancel'->>'supported' = 'false'
