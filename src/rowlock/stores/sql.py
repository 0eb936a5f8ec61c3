"""Statements stand in files: stores/<store>/sql/<verb>.sql. The method, the verb and the file have one name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def load(package: str, name: str) -> str:
    return files(package).joinpath("sql", f"{name}.sql").read_text("utf-8")
