"""The worker: what claims jobs, runs their handlers and settles what came of it."""
