"""SQL stands in files: stores/<store>/sql/<name>.sql. A statement has the name of its file.

A text may have blanks, such as {schema}. `fill` puts texts into them, by plain replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def load(package: str, name: str) -> str:
    return files(package).joinpath("sql", f"{name}.sql").read_text("utf-8")


def names(package: str) -> list[str]:
    """Return the names of all whole statements. Files in a folder below are parts of statements."""
    found = files(package).joinpath("sql").iterdir()
    return sorted(file.name.removesuffix(".sql") for file in found if file.name.endswith(".sql"))


def fill(text: str, blanks: Mapping[str, str]) -> str:
    """Return the text with its blanks filled, in the order given: a value may have blanks that come later."""
    for name, value in blanks.items():
        text = text.replace(f"{{{name}}}", value)
    return text
