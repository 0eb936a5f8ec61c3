SELECT topic FROM _jobs_archive WHERE topic > :topic ORDER BY topic LIMIT 1
