-- Each flow is looked at once an hour, and not in its first minutes.
SELECT id FROM _jobs_flows WHERE looked < ? ORDER BY looked LIMIT ?
