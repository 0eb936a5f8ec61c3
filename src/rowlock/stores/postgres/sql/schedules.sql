-- By name, then id. An "over" schedule never fires again.
SELECT {schedule_row}::text FROM {schema}._jobs_schedules s
WHERE ($1::uuid[] IS NULL OR s.id = ANY ($1::uuid[]))
  AND ($2::text IS NULL OR s.name = $2) AND ($3::text IS NULL OR s.topic = $3)
  AND ($4::text IS NULL OR s.scope = $4) AND ($5::text IS NULL OR s.scope_id = $5)
  AND ($6::text IS NULL OR $6 = CASE WHEN s.next_run_at IS NULL THEN 'over'
                                     WHEN s.paused_at IS NOT NULL AND s.resumed_at IS NULL THEN 'paused'
                                     ELSE 'active' END)
  AND ($7::text IS NULL OR s.name ~ $7)
  AND ($8::text IS NULL OR s.owner = $8) AND ($9::bool IS NULL OR s.absent = $9)
  AND ($10::text IS NULL OR s.zone_data < $10)
  AND ($11::text IS NULL OR (s.name, s.id) > ($11::text, $12::uuid))
ORDER BY s.name, s.id LIMIT $13::int
