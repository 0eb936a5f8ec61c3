-- How many edges lead to these jobs, by call, and how many of them are open.
SELECT e.child, e.call, count(*), sum(e.ended IS NULL)
FROM json_each(:ids) s CROSS JOIN _jobs_edges e ON e.child = s.value GROUP BY 1, 2
