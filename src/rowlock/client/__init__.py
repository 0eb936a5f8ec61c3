"""What `Jobs` is made of: sharing commits, ringing the bell, and a thread for callers without an event loop."""
