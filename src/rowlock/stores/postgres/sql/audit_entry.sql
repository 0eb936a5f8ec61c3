INSERT INTO {schema}._jobs_audit (at, by, action, topic, reason, data, job_id)
VALUES (clock_timestamp(), $1::text, $2::text, $3::text, $4::text, $5::text::json, $6::uuid)
