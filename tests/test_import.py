"""`import rowlock` is light: no driver, no web framework."""

import subprocess
import sys

import pytest

import rowlock
import rowlock.errors

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


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert {name for name in rowlock.__all__ if getattr(rowlock, name, None) is None} <= {"INJECTED"}
    assert set(rowlock.__all__) <= set(dir(rowlock))
    found = {name: value for name, value in vars(rowlock.errors).items() if isinstance(value, type)}
    assert {name for name, one in found.items() if issubclass(one, rowlock.RowlockError)} <= set(rowlock.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rowlock.nothing  # noqa: B018 - the attribute access is the test
