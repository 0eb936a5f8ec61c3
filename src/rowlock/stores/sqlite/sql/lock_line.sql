-- The head of a line, then its blocked jobs in their order: the first one, or all if a job replaces others of them.
SELECT {row} FROM (
    SELECT * FROM (SELECT j.*, 0 AS place FROM _jobs j
                   WHERE line = :line AND line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL)
    UNION ALL
    SELECT * FROM (SELECT j.*, 1 AS place FROM _jobs j WHERE line = :line AND line IS NOT NULL AND status = 'blocked'
                   ORDER BY line_seq
                   LIMIT CASE WHEN EXISTS (SELECT 1 FROM _jobs r WHERE r.line = :line AND r.line IS NOT NULL
                                           AND r.status = 'blocked' AND r.if_live = 'replace')
                              OR EXISTS (SELECT 1 FROM _jobs h, _jobs b
                                         WHERE h.line = :line AND h.line IS NOT NULL AND h.status <> 'blocked'
                                           AND h.finished_at IS NULL AND h.if_live = 'replace'
                                           AND b.line = :line AND b.line IS NOT NULL AND b.status = 'blocked'
                                           AND b.line_seq < h.line_seq) THEN -1 ELSE 1 END)
) j ORDER BY place, line_seq
