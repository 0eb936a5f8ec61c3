-- The blocked jobs of a line are in one index, its head in another.
SELECT j.status <> 'blocked',
       (SELECT h.id::text FROM {schema}._jobs h
        WHERE h.line = j.line AND h.status IN ('pending', 'processing', 'waiting', 'cancel_requested')),
       (SELECT b.id::text FROM {schema}._jobs b
        WHERE b.line = j.line AND b.status = 'blocked' AND b.line_seq < j.line_seq
        ORDER BY b.line_seq DESC LIMIT 1),
       (SELECT count(*) FROM (SELECT FROM {schema}._jobs b
                              WHERE b.line = j.line AND b.status = 'blocked' AND b.line_seq < j.line_seq
                              LIMIT $2::int) a),
       (SELECT count(*) FROM (SELECT FROM {schema}._jobs b
                              WHERE b.line = j.line AND b.status = 'blocked'
                                AND b.line_seq > CASE j.status WHEN 'blocked' THEN j.line_seq ELSE -1 END
                              LIMIT $2::int) a)
FROM {schema}._jobs j
WHERE j.id = $1::uuid AND j.line IS NOT NULL AND j.status IN ('blocked', 'pending', 'processing', 'waiting', 'cancel_requested')
