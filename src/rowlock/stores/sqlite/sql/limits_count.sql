INSERT INTO _jobs_starts (rule, value, bucket, n, at, until) VALUES (:rule, :value, :now / :width, :n, :now, :now + :length)
ON CONFLICT (rule, value, bucket) DO UPDATE SET n = n + excluded.n, at = max(at, excluded.at), until = max(until, excluded.until)
