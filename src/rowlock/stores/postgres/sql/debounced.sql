-- The jobs of these lines whose payload a newer enqueue replaces.
SELECT j.line, j.id FROM {schema}._jobs j
WHERE j.line = ANY ($1::text[]) AND j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
