"""Settings: argument > environment (ROWLOCK_*) > file > default, checked before anything is done with them.

The file is rowlock.toml in the working directory, or what ROWLOCK_CONFIG or `config_file=` names; its keys are the
settings' names, at the top or in a table [rowlock]. Those of the HTTP server stand in a table `server` of that.
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
    """`listen_url`: where to LISTEN, if `url` leads to a pooler. `migrate` None: yes on SQLite, which is the
    application's own; no elsewhere, where `rowlock migrate` does it. `by` names this application in the audit. The rest
    is the worker's: see rowlock.runtime.settings. `given` names what has not its default: for that, nobody looks into
    the database."""

    url: str
    listen_url: str | None = None
    migrate: bool | None = None
    by: str = "python"
    concurrency: int = 10
    lease: float = 30.0
    poll: float = 1.0
    grace: float = 25.0
    given: frozenset[str] = frozenset()

    def __repr__(self) -> str:  # the default one would show passwords
        return f"Settings(by={self.by!r}, given={sorted(self.given)})"


class ServerSettings(Struct, frozen=True):
    """`rowlock serve`: where it listens, and what ApiSettings says about the rest."""

    host: str = "127.0.0.1"
    port: int = 8090
    allowed_hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    read_only: bool = False
    insecure_http: bool = False
    certificate: str | None = None
    certificate_key: str | None = None
    jwt_secret: str | None = None
    jwt_jwks: str | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None

    def __repr__(self) -> str:  # the default one would show the secret
        return f"ServerSettings({self.host}:{self.port})"


_Kinds = Mapping[str, type]
_KINDS: _Kinds = {
    "url": str, "listen_url": str, "migrate": bool, "by": str, "concurrency": int, "lease": float, "poll": float,
    "grace": float,
}  # fmt: skip
_SERVER: _Kinds = {
    "host": str, "port": int, "allowed_hosts": tuple, "origins": tuple, "public_url": str, "trusted_proxies": tuple,
    "read_only": bool, "insecure_http": bool, "certificate": str, "certificate_key": str, "jwt_secret": str,
    "jwt_jwks": str, "jwt_issuer": str, "jwt_audience": str,
}  # fmt: skip
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(
    arguments: Mapping[str, Any],
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """`arguments` that are None were not given."""
    values = _gather(_KINDS, None, arguments, config, environ)
    if "url" not in values:
        raise InvalidInput(
            "url", "missing", f'give Jobs("sqlite:///jobs.db") or --url, or set {PREFIX}URL, or put url into {FILE}'
        )
    return Settings(**values, given=frozenset(values))


def load_server(
    arguments: Mapping[str, Any],
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServerSettings:
    return ServerSettings(**_gather(_SERVER, "server", arguments, config, environ))


def _gather(
    kinds: _Kinds,
    table: str | None,
    arguments: Mapping[str, Any],
    config: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
) -> dict[str, Any]:
    env = os.environ if environ is None else environ
    values = _from_file(kinds, table, config if config is not None else env.get(f"{PREFIX}CONFIG"))
    for name in kinds:
        text = env.get(f"{PREFIX}{name.upper()}")
        if text:  # empty is as good as not set
            values[name] = _parse(kinds, name, text, f"{PREFIX}{name.upper()}")
    for name, value in arguments.items():
        if value is not None:
            values[name] = _check(kinds, name, value, name)
    return values


def _from_file(kinds: _Kinds, inner: str | None, path: str | os.PathLike[str] | None) -> dict[str, Any]:
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
    server = table.pop("server", {})
    if not isinstance(server, dict):
        raise InvalidInput("config", "bad_toml", f"{file}: server must be a table")
    table = server if inner == "server" else table
    if unknown := sorted(set(table) - set(kinds)):
        raise InvalidInput("config", "unknown_setting", f"{file}: {', '.join(unknown)}; known are {', '.join(kinds)}")
    return {name: _check(kinds, name, value, f"{file}: {name}") for name, value in table.items()}


def _parse(kinds: _Kinds, name: str, text: str, where: str) -> Any:
    kind = kinds[name]
    if kind is bool:
        try:
            return _WORDS[text.strip().lower()]
        except KeyError:
            raise InvalidInput(where, "not_a_bool", f"must be one of {', '.join(_WORDS)}, not {text!r:.40}") from None
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is str:
        return _check(kinds, name, text, where)
    try:
        return kind(text)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise InvalidInput(where, "not_a_number", f"must be a {what}, not {text!r:.40}") from None


def _check(kinds: _Kinds, name: str, value: Any, where: str) -> Any:
    kind = kinds[name]
    if kind is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) and part for part in value):
            raise InvalidInput(where, "bad_setting", "must be a list of texts")
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        not isinstance(value, kind) or value == "" or (kind is int and isinstance(value, bool))
    ):  # not shown: it may hold a password
        raise InvalidInput(where, "bad_setting", f"must be a non-empty {kind.__name__}, not {type(value).__name__}")
    return check_text(value, where, max_chars=MAX_TEXT) if name == "by" else value
