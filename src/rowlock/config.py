"""Settings. Arguments win over environment variables (ROWLOCK_*), these over the file, the file over the defaults.

The file is rowlock.toml in the working directory, or the one that ROWLOCK_CONFIG or `config_file=` names. Its keys are
the settings' names, at the top or in a table [rowlock]. Settings of the HTTP server stand in a table `server` in it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Struct

from rowlock.access.public_url import check_public_url
from rowlock.core.codec import check_text
from rowlock.core.job import MAX_TEXT
from rowlock.errors import InvalidInput

PREFIX = "ROWLOCK_"
FILE = "rowlock.toml"


class Settings(Struct, frozen=True):
    """`listen_url`: where to LISTEN, if `url` leads to a pooler. `migrate`: create or update the tables; None means yes
    on SQLite and no elsewhere, where `rowlock migrate` does it. `by` names this application in the audit.
    `public_url`: where clients reach the HTTP API, for the addresses of callbacks. The other settings are the worker's:
    see rowlock.runtime.settings. `given` names the settings that were given; for these, workers ignore the settings in
    the database."""

    url: str
    listen_url: str | None = None
    migrate: bool | None = None
    by: str = "python"
    public_url: str | None = None
    concurrency: int = 10
    lease: float = 30.0
    poll: float = 1.0
    grace: float = 25.0
    given: frozenset[str] = frozenset()

    def __repr__(self) -> str:  # the default one would show passwords
        return f"Settings(by={self.by!r}, given={sorted(self.given)})"


class ServerSettings(Struct, frozen=True):
    """Settings of `rowlock serve`. ApiSettings explains most of them."""

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


def _kinds(of: type[Struct]) -> _Kinds:
    """Return the type of each setting, without None: `str | None` is str, `tuple[str, ...]` is tuple."""
    kinds = {}
    for name, hint in get_type_hints(of).items():
        kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
        kinds[name] = get_origin(kind) or kind
    return kinds


_KINDS = {name: kind for name, kind in _kinds(Settings).items() if name != "given"}
_SERVER = _kinds(ServerSettings)
_SHARED = ("public_url",)  # in the file it may stand in either table
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(
    arguments: Mapping[str, Any],
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings. `arguments` that are None count as not given."""
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
        if text:  # an empty variable counts as not set
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
    table, other = (server, table) if inner == "server" else (table, server)
    table = {name: other[name] for name in _SHARED if name in other} | table
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
            raise InvalidInput(where, "bad_setting", "must be a list of non-empty texts")
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        not isinstance(value, kind) or value == "" or (kind is int and isinstance(value, bool))
    ):  # the value is not shown: it may hold a password
        raise InvalidInput(where, "bad_setting", f"must be a non-empty {kind.__name__}, not {type(value).__name__}")
    if name == "public_url" and isinstance(value, str):
        return check_public_url(value, where)
    return check_text(value, where, max_chars=MAX_TEXT) if name == "by" else value
