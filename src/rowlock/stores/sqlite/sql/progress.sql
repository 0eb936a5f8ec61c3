UPDATE _jobs
SET progress = coalesce(:percent, progress), stage = coalesce(:stage, stage), message = coalesce(:message, message),
    updated = :now
WHERE n = :n
