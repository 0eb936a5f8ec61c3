-- The blocked jobs of a line are in one index, its head in another.
SELECT j.status <> 'blocked',
       (SELECT h.id FROM _jobs h INDEXED BY _jobs_head
        WHERE h.line = j.line AND h.line IS NOT NULL AND h.status <> 'blocked' AND h.finished_at IS NULL),
       (SELECT b.id FROM _jobs b INDEXED BY _jobs_line
        WHERE b.line = j.line AND b.line IS NOT NULL AND b.status = 'blocked' AND b.line_seq < j.line_seq
        ORDER BY b.line_seq DESC LIMIT 1),
       (SELECT count(*) FROM (
            SELECT 1 FROM _jobs b INDEXED BY _jobs_line
            WHERE b.line = j.line AND b.line IS NOT NULL AND b.status = 'blocked' AND b.line_seq < j.line_seq
            LIMIT :bound)),
       (SELECT count(*) FROM (
            SELECT 1 FROM _jobs b INDEXED BY _jobs_line
            WHERE b.line = j.line AND b.line IS NOT NULL AND b.status = 'blocked'
              AND b.line_seq > CASE j.status WHEN 'blocked' THEN j.line_seq ELSE -1 END
            LIMIT :bound))
FROM _jobs j WHERE j.id = :id AND j.line IS NOT NULL AND j.finished_at IS NULL
