SELECT {bulk_columns} FROM {schema}._jobs_bulk b
WHERE ($1::uuid[] IS NULL OR b.id = ANY ($1::uuid[])) AND b.id < $2::uuid
ORDER BY b.id DESC
LIMIT $3::int
