INSERT INTO {schema}._jobs_ends (line) SELECT unnest($1::text[])
