-- The job of this line that a newer enqueue replaces: no worker has claimed it. One condition for each index.
SELECT {row} FROM (
    SELECT * FROM _jobs WHERE line = :line AND line IS NOT NULL AND status <> 'blocked' AND finished_at IS NULL
    UNION ALL
    SELECT * FROM _jobs WHERE line = :line AND line IS NOT NULL AND status = 'blocked'
) j
WHERE j.if_live = 'debounce' AND j.version = 0 AND j.status IN ('pending', 'blocked')
