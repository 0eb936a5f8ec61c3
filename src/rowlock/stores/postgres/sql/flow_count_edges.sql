-- How many edges lead to these jobs, by call, and how many of them are open.
SELECT e.child::text, e.call, count(*)::int, count(*) FILTER (WHERE e.ended IS NULL)::int
FROM unnest($1::uuid[]) AS s (id) JOIN {schema}._jobs_edges e ON e.child = s.id GROUP BY 1, 2
