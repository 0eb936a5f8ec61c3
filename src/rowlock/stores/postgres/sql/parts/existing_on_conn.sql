SELECT coalesce(json_agg(json_build_array(
    n, id, status, {schema}._jobs_us(run_at), {schema}._jobs_us(created))), '[]')::text
FROM (
{existing}
) e
