-- What is about to be claimed, in the order of :rows, as two JSON texts: for each row that is fetched, and for each of
-- its columns, Python takes longer than SQLite, and between rows it lets other threads go first. The payload is JSON as
-- it is. What the claim sets needs no answer; columns that most jobs don't use come as one. A timeout that is no whole
-- number would lose digits in JSON: see claim_timeouts.
SELECT CAST('[' || group_concat(json_array(
           {common}, CASE WHEN coalesce(j.history, {rare}) IS NOT NULL THEN json_array({rare_values}) END)) || ']' AS BLOB),
       CAST('[' || group_concat(j.payload) || ']' AS BLOB)
FROM json_each(:rows) i CROSS JOIN _jobs j ON j.n = i.value
