-- Jobs by id, wherever they are, as core.moves.Row. The transaction has the write lock: no row needs one of its own.
SELECT {row} FROM json_each(:ids) i CROSS JOIN _jobs j ON j.id = i.value
UNION ALL
SELECT {archived_row} FROM json_each(:ids) i CROSS JOIN _jobs_archive j ON j.id = i.value
