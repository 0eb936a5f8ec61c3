-- If the client falls silent in this transaction, the server ends it and frees its locks.
SELECT {silence}
