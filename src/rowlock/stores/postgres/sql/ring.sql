-- Who waits holds this lock, shared (doorbell.py). A NOTIFY takes a global lock when it commits, so when nobody waits
-- there is none. Of two that ring at the same moment one may take the other for a waiter: a ring too many.
SELECT pg_notify($1::text, '') WHERE NOT pg_try_advisory_xact_lock($2::bigint)
