log_dropped = j.log_dropped + greatest(  -- greatest ignores NULL
            0, coalesce(jsonb_array_length(j.log), 0) + jsonb_array_length({said}.lines) - {most}::int),
        log = CASE WHEN {said}.lines IS NULL THEN j.log ELSE (
            SELECT jsonb_agg(line ORDER BY new, n) FROM (
                SELECT false AS new, n, line FROM jsonb_array_elements(j.log) WITH ORDINALITY AS old (line, n)
                UNION ALL
                SELECT true, n, jsonb_build_object(
                    'at', {schema}._jobs_us({said}.now) - (said->>0)::bigint, 'version', j.version, 'level', said->1,
                    'text', said->2)
                FROM jsonb_array_elements({said}.lines) WITH ORDINALITY AS fresh (said, n)
                ORDER BY new DESC, n DESC
                LIMIT {most}::int
            ) newest) END