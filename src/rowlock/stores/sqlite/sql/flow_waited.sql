-- Which of these jobs have waited for others.
SELECT DISTINCT e.child FROM json_each(?) s CROSS JOIN _jobs_edges e ON e.child = s.value WHERE e.call IS NULL
