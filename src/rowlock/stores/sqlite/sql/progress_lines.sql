UPDATE {table} SET log = :log, log_dropped = log_dropped + :dropped WHERE n = :n
