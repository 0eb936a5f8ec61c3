-- Takes the write lock and changes nothing. A read before it could make the lock unavailable: SQLite doesn't let a
-- transaction write whose snapshot others have overtaken.
UPDATE _jobs_meta SET value = value WHERE name = ''
