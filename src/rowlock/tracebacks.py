"""Error texts: tracebacks without the frames of rowlock that stand around every handler and step."""

from __future__ import annotations

import traceback
from pathlib import Path

from rowlock.core import codec

MAX_ERROR = 64 << 10  # bytes of a traceback that are kept
_HERE = Path(__file__).parent
_OURS = (str(_HERE / "runtime"), str(_HERE / "wasm"), str(_HERE / "run_steps.py"))


def error_text(error: BaseException) -> str:
    """Return the traceback without frames of the runtime, even if the exception raises when it is formatted."""
    try:
        report = traceback.TracebackException.from_exception(error)
        _drop_our_frames(report)
        text = "".join(report.format()).rstrip("\n")
    except BaseException as problem:
        text = f"{type(error).__qualname__} (its traceback can't be shown: {type(problem).__qualname__})"
    return codec.clean_text(text, MAX_ERROR)


def _drop_our_frames(report: traceback.TracebackException) -> None:
    seen: set[int] = set()
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
        todo += [one.__cause__, one.__context__, *(one.exceptions or ())]
