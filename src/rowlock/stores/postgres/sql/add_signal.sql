INSERT INTO {schema}._jobs_signals (job_id, seq, name, signal_id, data, at, by)
VALUES ($1::uuid, $2::int, $3::text, $4::text, $5::text::json, {schema}._jobs_time($6::bigint), $7::text)
