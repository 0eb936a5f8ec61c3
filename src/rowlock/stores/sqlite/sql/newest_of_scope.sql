SELECT id, topic, status FROM _jobs INDEXED BY _jobs_scope_id
WHERE scope_id = :scope_id ORDER BY id DESC LIMIT :count
