-- The head of a line, then its blocked jobs in their order: the first one, or all if one of them replaces the others.
SELECT {row} FROM (
    SELECT * FROM (SELECT j.*, 0 AS place FROM _jobs j
                   WHERE line = :line AND line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL)
    UNION ALL
    SELECT * FROM (SELECT j.*, 1 AS place FROM _jobs j WHERE line = :line AND line IS NOT NULL AND status = 'blocked'
                   ORDER BY line_seq
                   LIMIT CASE WHEN EXISTS (SELECT 1 FROM _jobs r WHERE r.line = :line AND r.line IS NOT NULL
                                           AND r.status = 'blocked' AND r.if_live = 'replace') THEN -1 ELSE 1 END)
) j ORDER BY place, line_seq
