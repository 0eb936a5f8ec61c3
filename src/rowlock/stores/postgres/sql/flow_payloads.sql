-- The payloads of jobs that this transaction has locked.
SELECT j.id::text, j.payload::text FROM unnest($1::uuid[]) AS s (id) JOIN {schema}._jobs j ON j.id = s.id
