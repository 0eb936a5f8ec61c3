UPDATE _jobs SET step = :step, progress = coalesce(:percent, progress), updated = :now WHERE id = :id
