UPDATE _jobs SET fingerprint = :fingerprint WHERE n = :n
