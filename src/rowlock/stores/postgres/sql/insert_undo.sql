-- A repeated insert whose first try has been completed meanwhile must not stay. Runs in the inserting transaction,
-- after the insert and with a fresh snapshot: from the insert on nobody else can bring this id in.
DELETE FROM {schema}._jobs j USING {asked}
WHERE j.id = s.id AND EXISTS (SELECT 1 FROM {schema}._jobs_archive a WHERE a.id = s.id)
RETURNING j.id, {schema}._jobs_note_enqueued(j.created, ARRAY[j.topic], -1)
