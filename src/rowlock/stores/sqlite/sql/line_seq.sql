-- Gives out places in lines. A place is never used twice, even if its job is gone.
INSERT INTO _jobs_meta (name, value) VALUES ('line_seq', '1')
ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1
RETURNING CAST(value AS INTEGER)
