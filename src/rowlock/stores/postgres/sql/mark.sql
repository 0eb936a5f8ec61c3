-- Whoever has the same snapshot sees the same rows.
SELECT pg_current_snapshot()::text
