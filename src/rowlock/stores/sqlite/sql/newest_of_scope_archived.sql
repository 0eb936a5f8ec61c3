SELECT id, topic, 'completed' FROM _jobs_archive INDEXED BY _jobs_archive_scope_id
WHERE scope_id = :scope_id ORDER BY id DESC LIMIT :count
