"""The defences of lines, and of keys that count once: see sabotage.py."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import rowlock.core.moves
import rowlock.stores.postgres.insert_on_conn
import rowlock.stores.postgres.lines
import rowlock.stores.sqlite.insert
import rowlock.stores.sqlite.lines
from rowlock.core.debounce import Window
from rowlock.core.moves import Requeue, Row
from rowlock.core.times import span
from rowlock.stores.postgres.statements import Statements
from rowlock.stores.sqlite import moves as sqlite_moves
from rowlock.stores.sqlite import settle
from tests.proof import detectors_lines as red
from tests.proof.sabotage import Defence, Switch, both, postgres, replaced, sqlite, without, wrapped

_LINES = {"postgres": rowlock.stores.postgres.lines, "sqlite": rowlock.stores.sqlite.lines}


def _on_conn(names: str, old: str, new: str) -> Switch:
    """Return a switch for statements that callers' connections use. The product keeps those for ever, so make them
    anew."""
    fresh = replaced(
        rowlock.stores.postgres.insert_on_conn, "statements_on_conn", lambda schema: Statements(f'"{schema}"')
    )
    return both(postgres(names, old, new), fresh)


def _statement(name: str, old: str, new: str) -> Switch:
    """Return a switch for one of SQLite's statements that lock rows."""

    def switch_off(patch: pytest.MonkeyPatch) -> None:
        load = sqlite_moves.statement
        patch.setattr(
            sqlite_moves, "statement", lambda asked: without(load(asked), old, new) if asked == name else load(asked)
        )

    return switch_off


def _heads_are_not_seen(advance: Callable[..., Any]) -> Callable[..., Any]:
    return lambda head, held, blocked, most: advance(None, None, blocked, most)


def _commits_count(advance: Callable[..., Any]) -> Callable[..., Any]:
    """Let the head count as the oldest job of its line."""

    def oldest(row: Row | None) -> Row | None:
        return row and row._replace(line_seq=0)

    return lambda head, held, blocked, most: advance(oldest(head), held or head, blocked, most)


def _nothing_is_replaced(advance: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *line: replace(advance(*line), replaced=[])


def _keeps_its_place(patch: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, row, now, holder: replace(patch(self, row, now, holder), to_end=False)


def _without_a_bound(window: Window, created: int, run_at: int, now: int) -> int:
    return now + span(window.seconds)


def _never_a_repeat(insert: Callable[..., Any]) -> Callable[..., Any]:
    return lambda conn, now, jobs, repeat: insert(conn, now, jobs, False)


_LOCK = "pg_advisory_xact_lock(('x' || left(line, 16))::bit(64)::bigint)"
_NOTE = "SELECT line FROM json_array_elements_text($1::text::json) AS l (line)"

LINES: tuple[Defence, ...] = (
    Defence("one advance at a time", "postgres", postgres("advance_take", _LOCK, "0"), red.advances_at_once, False),
    Defence(
        "the note of a new job", "postgres",
        _on_conn("note_lines_on_conn", _NOTE, f"{_NOTE} WHERE false"), red.order, False,
    ),
    Defence(
        "no line in the short way of complete", "postgres",
        postgres("complete complete_and_claim", " AND line IS NULL", ""), red.end_of_the_head, False,
    ),
    Defence(
        "no line in the short way of complete", "sqlite",
        sqlite(settle, "settle_archive", "AND (line IS NULL OR :lined)", ""), red.end_of_the_head, False,
    ),
    *(
        Defence("the head", store, wrapped(module, "advance", _heads_are_not_seen), red.second_head, False)
        for store, module in _LINES.items()
    ),
    *(
        Defence("replaced jobs", store, wrapped(module, "advance", _nothing_is_replaced), red.replacement, False)
        for store, module in _LINES.items()
    ),
    *(
        Defence(f"places, not commits: {red_.__name__}", store, wrapped(module, "advance", _commits_count), red_, False)
        for store, module in _LINES.items()
        for red_ in (red.late, red.replaced_by_the_head)
    ),
    Defence(
        "the order of a line", "postgres",
        postgres("advance_rows", "ORDER BY j.line_seq\n", "ORDER BY j.priority DESC\n"), red.order, False,
    ),
    Defence(
        "the order of a line", "sqlite",
        _statement("lock_line", "ORDER BY line_seq\n", "ORDER BY priority DESC\n"), red.order, False,
    ),
    Defence(
        "requeue to the end", "postgres", postgres("write_moves", "c.change ? 'to_end'", "false"), red.requeue, False
    ),
    Defence("requeue to the end", "sqlite", wrapped(Requeue, "patch", _keeps_its_place), red.requeue, False),
    Defence(
        "once: the note", "postgres",
        _on_conn("once_on_conn", "s ORDER BY s.key", "s WHERE false ORDER BY s.key"), red.once, False,
    ),
    Defence(
        "once: the first stands", "sqlite",
        sqlite(rowlock.stores.sqlite.insert, "once", "DO NOTHING", "DO UPDATE SET job_id = excluded.job_id"),
        red.once, False,
    ),
    Defence(
        "once: a delete frees the key", "postgres",
        postgres("write_moves", "_jobs_once WHERE job_id", "_jobs_once WHERE false AND job_id"), red.once, False,
    ),
    Defence(
        "once: a delete frees the key", "sqlite",
        sqlite(sqlite_moves, "once_free", "WHERE job_id = ?", "WHERE job_id = ? AND false"), red.once, False,
    ),
    Defence(
        "debounce: a claimed job keeps its payload", "postgres",
        both(_on_conn("debounce_lock_on_conn", " AND j.version = 0", ""), replaced(Row, "is_open", True)), red.claimed,
    ),
    Defence(
        "debounce: a claimed job keeps its payload", "sqlite",
        both(_statement("debounce_lock", "j.version = 0 AND ", ""), replaced(Row, "is_open", True)), red.claimed,
    ),
    *(
        Defence(f"debounce: {name}", store, off, detector)
        for store in ("postgres", "sqlite")
        for name, off, detector in (
            ("its bound", replaced(rowlock.core.moves, "debounced_until", _without_a_bound), red.bound),
            ("one open job per line", replaced(Row, "is_open", False), red.requeued),
        )
    ),
    Defence(
        "debounce: an enqueuer's transaction is not waited for", "postgres",
        postgres("advance_rows", "'blocked' FOR NO KEY UPDATE SKIP LOCKED", "'blocked' FOR NO KEY UPDATE"),
        red.held_key, False, waits=True,
    ),
    Defence(
        "debounce: a repeat replaces nothing", "sqlite",
        wrapped(rowlock.stores.sqlite.insert, "_insert_in_windows", _never_a_repeat), red.repeated,
    ),
    Defence(
        "throttle: the note", "postgres",
        _on_conn("throttle_write_on_conn", "WHERE t.line", "WHERE false AND t.line"), red.window,
    ),
    Defence(
        "throttle: the note", "sqlite",
        sqlite(rowlock.stores.sqlite.insert, "throttle", "WHERE line = ?", "WHERE line = ? AND false"), red.window,
    ),
)  # fmt: skip
