UPDATE _jobs_edges SET fills = :fills, ended = :ended, verdict = :verdict, result = :result, error = :error
WHERE child = :child AND parent = :parent
