-- Settle on a caller's connection. One JSON text has all parameters: any driver can pass that.
WITH given AS MATERIALIZED (SELECT $1::text::jsonb AS columns),
{settle}
SELECT CASE WHEN applied IS NULL THEN 'applied' ELSE 'refused' END FROM settle_summary
