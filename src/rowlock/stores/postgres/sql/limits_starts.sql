-- The starts of these rates ($1) and values ($2), in their windows.
SELECT s.rule, s.value, {schema}._jobs_us(s.at), s.n
FROM unnest($1::text[], $2::text[]) AS asked (rule, value)
JOIN {schema}._jobs_starts s ON s.rule = asked.rule AND s.value = asked.value
WHERE s.until > (SELECT clock_timestamp())
