"""The parts of `Jobs`: shared commits, the doorbell of workers, and a thread for callers without an event loop."""
