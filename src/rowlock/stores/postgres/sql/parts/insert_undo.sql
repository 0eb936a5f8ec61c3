-- A repeated insert whose first try has been completed meanwhile must not stay. Runs in the inserting transaction,
-- after the insert and with a fresh snapshot: from the insert on nobody else can bring this id in, or move these rows.
DELETE FROM {schema}._jobs j
WHERE j.ctid = ANY (ARRAY(  -- by ranges: see read.sql. EXISTS would lose their order.
    SELECT (SELECT n.ctid FROM {schema}._jobs n WHERE n.id >= s.id AND n.id <= s.id ORDER BY n.id LIMIT 1) FROM {asked}
    WHERE (SELECT a.id FROM {schema}._jobs_archive a WHERE a.id >= s.id AND a.id <= s.id ORDER BY a.id LIMIT 1) IS NOT NULL
))
RETURNING j.id, {schema}._jobs_note_enqueued(j.created, ARRAY[j.topic], -1)
