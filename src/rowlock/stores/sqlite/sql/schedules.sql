SELECT {schedule_columns} FROM _jobs_schedules s
WHERE (:ids IS NULL OR s.id IN (SELECT value FROM json_each(:ids)))
  AND (:name IS NULL OR s.name = :name) AND (:topic IS NULL OR s.topic = :topic)
  AND (:scope IS NULL OR s.scope = :scope) AND (:scope_id IS NULL OR s.scope_id = :scope_id)
  AND (:state IS NULL OR :state = CASE WHEN s.next_run_at IS NULL THEN 'over'
                                       WHEN s.paused_at IS NOT NULL AND s.resumed_at IS NULL THEN 'paused'
                                       ELSE 'active' END)
  AND (:pattern IS NULL OR _jobs_finds(:pattern, s.name))
  AND (:owner IS NULL OR s.owner = :owner) AND (:absent IS NULL OR s.absent = :absent)
  AND (:zone_data IS NULL OR s.zone_data < :zone_data)
  AND (:after_name IS NULL OR (s.name, s.id) > (:after_name, :after_id))
ORDER BY s.name, s.id LIMIT :limit
