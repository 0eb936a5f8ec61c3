-- Two readers with the same snapshot see the same rows.
SELECT pg_current_snapshot()::text
