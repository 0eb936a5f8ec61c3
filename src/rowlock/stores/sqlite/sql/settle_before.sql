-- What is archived from now on has a larger n.
SELECT coalesce(max(n), 0) FROM _jobs_archive
