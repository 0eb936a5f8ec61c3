-- $2: who waits holds this lock, shared; $3: who rings, for itself (doorbell.py). Of two that ask at the same moment one may
-- take the other for a waiter: a ring too many. There is nothing to be lost, so nothing need be flushed to the disk while
-- the server's lock of NOTIFY is held.
SELECT pg_notify($1::text, ''), set_config('synchronous_commit', 'off', true)
WHERE CASE WHEN pg_try_advisory_xact_lock($2::bigint) THEN false ELSE pg_try_advisory_xact_lock($3::bigint) END
