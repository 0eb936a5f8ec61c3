"""rowlock on PostgreSQL, through asyncpg."""
