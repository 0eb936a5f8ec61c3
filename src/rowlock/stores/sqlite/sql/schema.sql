SELECT s.name, c.name FROM sqlite_master s JOIN pragma_table_info(s.name) c
WHERE s.type IN ('table', 'view') AND substr(s.name, 1, 5) = '_jobs'
