SELECT topic FROM _jobs WHERE finished_at IS NOT NULL AND status = :status AND topic > :topic ORDER BY topic LIMIT 1
