-- Take the lock of folding ($1) until the transaction ends. False: another process has it. NULL: there is nothing to fold.
SELECT CASE WHEN EXISTS (SELECT FROM {schema}._jobs_counts)
            THEN pg_try_advisory_xact_lock($1::bigint) AND set_config('rowlock.folds', 'requeues', true) = 'requeues' END
