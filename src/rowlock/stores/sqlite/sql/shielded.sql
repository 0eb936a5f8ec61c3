-- Which of these jobs a cancel timeout must leave alone.
SELECT j.id FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value WHERE {shielded}
