WITH old AS MATERIALIZED (
    SELECT r.ctid AS tid
    FROM unnest($1::int[], $2::float8[]) AS s (span, kept)
    CROSS JOIN LATERAL (
        SELECT ctid FROM {schema}._jobs_rollups
        WHERE span = s.span AND at < (SELECT clock_timestamp()) - s.kept * interval '1 second'
        ORDER BY at LIMIT $3::int FOR UPDATE SKIP LOCKED
    ) r
    LIMIT $3::int
)
DELETE FROM {schema}._jobs_rollups WHERE ctid = ANY (ARRAY(SELECT tid FROM old))
