"""The HTTP API, as an ASGI application: `jobs.asgi()` to mount it, `rowlock serve` to run it alone."""
