"""`import rowlock` is light: no driver, no web framework."""

import subprocess
import sys

HEAVY = {
    "sqlite3",
    "asyncpg",
    "psycopg",
    "psycopg2",
    "aiosqlite",
    "sqlalchemy",
    "django",
    "starlette",
    "uvicorn",
    "pydantic",
}


def test_importing_loads_no_driver_and_no_framework() -> None:
    program = "import rowlock, sys; print(' '.join({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "rowlock" in loaded
    assert HEAVY & set(loaded) == set()
