-- Which of these ids were just inserted: n grows.
SELECT j.id FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value WHERE j.n > :before
