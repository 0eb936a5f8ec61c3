SELECT 'rung' FROM pg_notify($1::text, '')
