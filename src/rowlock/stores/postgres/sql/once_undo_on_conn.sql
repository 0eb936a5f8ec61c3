-- Takes back jobs that this transaction has just inserted (the parameter has their ids), and the keys that they have for ever.
WITH asked AS MATERIALIZED (SELECT value::uuid AS id FROM json_array_elements_text($1::text::json)),
freed AS (DELETE FROM {schema}._jobs_once WHERE job_id IN (SELECT id FROM asked)),
gone AS (
    DELETE FROM {schema}._jobs j WHERE j.id = ANY (ARRAY(SELECT id FROM asked))
    RETURNING {schema}._jobs_note_enqueued(j.created, ARRAY[j.topic], -1)
)
SELECT count(*)::text FROM gone
