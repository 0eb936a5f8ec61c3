-- A longer window than that of the enqueue that made the job: the row must stay for it.
UPDATE _jobs_throttles SET until = at + :span WHERE line = :line AND until < at + :span
