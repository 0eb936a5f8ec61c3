SELECT id FROM (
    SELECT id FROM (SELECT id FROM _jobs INDEXED BY _jobs_scope_id
                    WHERE scope_id = :scope_id ORDER BY id DESC LIMIT :limit)
    UNION ALL
    SELECT id FROM (SELECT id FROM _jobs_archive INDEXED BY _jobs_archive_scope_id
                    WHERE scope_id = :scope_id ORDER BY id DESC LIMIT :limit)
) ORDER BY id DESC LIMIT :limit
