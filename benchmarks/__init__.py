"""rowlock beside other job queues, and beside its own SQL in a bare loop: see README.md."""
