"""The worker: it claims jobs, runs their handlers and settles the outcomes."""
