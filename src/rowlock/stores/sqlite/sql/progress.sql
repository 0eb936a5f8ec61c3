UPDATE _jobs
SET progress = :percent, stage = coalesce(:stage, stage), message = coalesce(:message, message), updated = :now
WHERE n = :n
