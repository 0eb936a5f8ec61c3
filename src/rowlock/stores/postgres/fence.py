"""The fence: the last statement before the COMMIT of a transaction that belongs to a run. On any driver."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from rowlock.core.lifecycle import Settlement
from rowlock.errors import LeaseLost
from rowlock.stores import sql
from rowlock.stores.base import Guard
from rowlock.stores.postgres.rows import settle_arrays
from rowlock.stores.postgres.statements import settling
from rowlock.stores.steps import Query, Steps


def fence(schema: str, guard: Guard) -> Steps[None]:
    """The run holds its lease until the end of the transaction; else LeaseLost.

    The row is locked by a statement of its own, also before a completion: a settle that had to wait for the lock would
    miss what was written meanwhile, be it only a heartbeat.
    """
    asked = {"id": guard.id, "version": guard.version, "worker": guard.worker}
    if (yield Query(_hold(schema), _text(asked))) != "held":
        raise LeaseLost(guard.id, guard.version)
    if guard.completion is not None and (yield _settle(schema, guard.completion)) != "applied":
        raise LeaseLost(guard.id, guard.version)


def _settle(schema: str, completion: Settlement) -> Query:
    return Query(_settle_text(schema), _text(settle_arrays([completion])))


@cache
def _hold(schema: str) -> str:
    return _load("fence", schema)


@cache
def _settle_text(schema: str) -> str:
    """Store.settle's own statement, with all its parameters in one text: any driver can pass that."""
    column = r"ARRAY(SELECT value::\2 FROM given, jsonb_array_elements_text(given.columns -> (\1 - 1)) AS e (value))"
    settle = re.sub(r"\$(\d+)::(\w+)\[\]", column, settling(f'"{schema}"'))
    settle = re.sub(r"\$(\d+)::text", r"(SELECT given.columns ->> (\1 - 1) FROM given)", settle)
    given = "WITH given AS MATERIALIZED (SELECT $1::text::jsonb AS columns)"
    answer = "SELECT CASE WHEN applied IS NULL THEN 'applied' ELSE 'refused' END FROM settle_summary"
    return f"{given},\n{settle}\n{answer}"


def _load(name: str, schema: str) -> str:
    return sql.load("rowlock.stores.postgres", name).replace("{schema}", f'"{schema}"')


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
