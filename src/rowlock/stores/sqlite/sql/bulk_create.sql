INSERT INTO _jobs_bulk (id, created, total, action, "by", reason, arguments, "filter", unfit)
VALUES (:id, :now, :total, :action, :by, :reason, :arguments, :filter, :unfit)
