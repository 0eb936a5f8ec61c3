"""Settings: argument > environment (ROWLOCK_*) > file > default, checked before anything is done with them.

The file is rowlock.toml in the working directory, or what ROWLOCK_CONFIG or `config_file=` names; its keys are the
settings' names, at the top or in a table [rowlock].
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from rowlock.core.codec import check_text
from rowlock.core.job import MAX_TEXT
from rowlock.errors import InvalidInput

PREFIX = "ROWLOCK_"
FILE = "rowlock.toml"


class Settings(Struct, frozen=True):
    """`migrate` None: yes on SQLite, which is the application's own; no elsewhere, where `rowlock migrate` does it.
    `by` names this application in the audit. The rest is the worker's: see rowlock.runtime.settings."""

    url: str
    migrate: bool | None = None
    by: str = "python"
    concurrency: int = 10
    lease: float = 30.0
    poll: float = 1.0
    grace: float = 25.0


_KINDS: dict[str, type] = {
    "url": str, "migrate": bool, "by": str, "concurrency": int, "lease": float, "poll": float, "grace": float,
}  # fmt: skip
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(
    arguments: Mapping[str, Any],
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """`arguments` that are None were not given."""
    env = os.environ if environ is None else environ
    values = _from_file(config if config is not None else env.get(f"{PREFIX}CONFIG"))
    for name in _KINDS:
        text = env.get(f"{PREFIX}{name.upper()}")
        if text:  # empty is as good as not set
            values[name] = _parse(name, text, f"{PREFIX}{name.upper()}")
    for name, value in arguments.items():
        if value is not None:
            values[name] = _check(name, value, name)
    if "url" not in values:
        raise InvalidInput(
            "url", "missing", f'give Jobs("sqlite:///jobs.db") or --url, or set {PREFIX}URL, or put url into {FILE}'
        )
    return Settings(**values)


def _from_file(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    file = Path(FILE if path is None else path)
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        if path is None:
            return {}
        raise InvalidInput("config", "missing_file", f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("config", "unreadable_file", f"{file} can't be read: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("config", "bad_toml", f"{file}: {error}") from None
    table = table.get("rowlock", table)
    if not isinstance(table, dict):
        raise InvalidInput("config", "bad_toml", f"{file}: rowlock must be a table")
    if unknown := sorted(set(table) - set(_KINDS)):
        raise InvalidInput("config", "unknown_setting", f"{file}: {', '.join(unknown)}; known are {', '.join(_KINDS)}")
    return {name: _check(name, value, f"{file}: {name}") for name, value in table.items()}


def _parse(name: str, text: str, where: str) -> Any:
    kind = _KINDS[name]
    if kind is bool:
        try:
            return _WORDS[text.strip().lower()]
        except KeyError:
            raise InvalidInput(where, "not_a_bool", f"must be one of {', '.join(_WORDS)}, not {text!r:.40}") from None
    if kind is str:
        return _check(name, text, where)
    try:
        return kind(text)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise InvalidInput(where, "not_a_number", f"must be a {what}, not {text!r:.40}") from None


def _check(name: str, value: Any, where: str) -> Any:
    kind = _KINDS[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        not isinstance(value, kind) or value == "" or (kind is int and isinstance(value, bool))
    ):  # not shown: it may hold a password
        raise InvalidInput(where, "bad_setting", f"must be a non-empty {kind.__name__}, not {type(value).__name__}")
    return check_text(value, where, max_chars=MAX_TEXT) if name == "by" else value
