-- The starts of these rates ($1) and values ($2) after $3 and until $4, in microseconds: the newest $5 parts of a window.
SELECT s.rule, s.value, {schema}._jobs_us(s.at), s.n
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[]) AS asked (rule, value, after, before, most)
CROSS JOIN LATERAL (
    SELECT k.rule, k.value, k.at, k.n FROM {schema}._jobs_starts k
    WHERE k.rule = asked.rule AND k.value = asked.value AND k.bucket > asked.after
      AND {schema}._jobs_us(k.at) > asked.after AND {schema}._jobs_us(k.at) <= asked.before
    ORDER BY k.bucket DESC LIMIT asked.most
) s
