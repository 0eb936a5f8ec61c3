-- `bucket` is the end of the part of a window.
INSERT INTO _jobs_starts (rule, value, bucket, n, at, until)
VALUES (:rule, :value, (:now / :width + 1) * :width - 1, :n, :now, :now + :length)
ON CONFLICT (rule, value, bucket) DO UPDATE SET n = n + excluded.n, at = max(at, excluded.at), until = max(until, excluded.until)
