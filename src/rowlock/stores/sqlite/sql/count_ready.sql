SELECT count(*) FROM (SELECT 1 FROM _jobs INDEXED BY _jobs_claim
                      WHERE ready AND topic = :topic AND template_version = :template_version LIMIT :limit)
