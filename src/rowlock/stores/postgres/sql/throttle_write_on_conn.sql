-- Notes jobs that were made with throttled keys, whose rows this transaction has locked.
-- The parameter is [[line, job, its time, until], …].
WITH made AS (
    UPDATE {schema}._jobs_throttles t
    SET job_id = (e->>1)::uuid, at = {schema}._jobs_time((e->>2)::bigint), until = {schema}._jobs_time((e->>3)::bigint)
    FROM json_array_elements($1::text::json) e
    WHERE t.line = e->>0
    RETURNING 1
)
SELECT count(*)::text FROM made
