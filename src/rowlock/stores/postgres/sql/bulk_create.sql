INSERT INTO {schema}._jobs_bulk AS b (id, created, total, action, status, by, reason, arguments, filter, unfit)
VALUES ($1::uuid, clock_timestamp(), $2::int, $3::text, 'preview', $4::text, $5::text, $6::text::json, $7::text::json,
        $8::text::json)
RETURNING {bulk_columns}
