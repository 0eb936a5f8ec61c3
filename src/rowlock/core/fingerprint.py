"""Fingerprints, which are the same for failures with the same cause. A fingerprint has the topic, the type of error,
and the innermost frame of the application's own code.

Line numbers, messages, values and directories are no part of it: the same mistake has the same fingerprint tomorrow, in
the next release, and on another machine. Stacks of other languages are read as well. For an error without a stack, the
first words count, without secrets: else a caller could guess a secret until the fingerprint fits. No text raises an
error here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from msgspec import Struct

from rowlock.core.secrets_in_text import SECRET_NAMES, NamedValues, replaced
from rowlock.errors import InvalidInput

DIGITS = 16
HALF = 32 << 10  # characters of each end of an error that are looked at
GAP = "\n… left out …\n"
WHOLE = 2 * HALF + len(GAP)  # what is longer is cut; what was cut is not cut again

# Follows the worker's name if its last action is not known. No part of the fingerprint.
UNSEEN_START = ". Its start was recorded; the handler may not have begun."

_PREFIX = "Max retries exceeded: "
_LONGEST = 200  # characters of a type, a frame or a title
_MOST_WORDS = 12
_LINE = 400  # characters of a line whose words are looked at

_FINGERPRINT = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
_NAME = re.compile(r"[^\W\d][\w.<>$]*")
_GENERIC = frozenset({"Error", "Exception", "Failure"})  # too general alone
_HEADER = "Traceback (most recent call last):"
_FIRST_OF_GROUP = re.compile(r"\s*\+-\+-+ 1 -+\s*")
_LEFT_OUT = re.compile(r"… .{0,40}left out …")
_QUOTED = re.compile(r"""(?<!\w)(["'`]).{0,400}?\1(?!\w)""")
# Fingerprints are stored, so these two expressions must not change: the value behind a secret name, and a header whose
# value is the rest of the line.
_QUOTES = "|".join(rf"{quote}.*?(?:{quote}|$)" for quote in (r"\\\"", r"\\'", r"\\`", '"', "'", "`"))
_VALUE = re.compile(rf"""{_QUOTES}|(?:(?:bearer|basic|digest|token)[ \t]+)?[^\s&"'`<>]+""", re.IGNORECASE)
_SECRETS = NamedValues(SECRET_NAMES, apart=False)
_SECRET_LINE = re.compile(r"(?<![\w-])([\w-]*(?:cookies?|authorization))[\"'`]?[ \t]*(?:=>|[=:]).*", re.IGNORECASE)
_LONGEST_WORD = 24  # characters of a word that people use
_WORKER = re.compile(r": worker [^\s,]+")
_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_TELLING = re.compile(r"[\d/\\@#]")  # in a word that names one thing: a number, a path, an address
_PYTHON_LIBRARY = re.compile(
    r"<frozen |/(?:site|dist)-packages/|/lib(?:64)?/python\d|/python\d*/lib/|(?:^|/)src/rowlock/", re.IGNORECASE
)
_STACK_LIBRARY = re.compile(r"(?:^|/)node_modules/|^node:|^internal/|^native\b|^<anonymous>|^Unknown Source")
_STACK_BUILTIN = ("java.", "javax.", "jdk.", "sun.", "kotlin.", "System.", "Microsoft.")
_GO_LIBRARY = re.compile(r"/go/src/|/pkg/mod/|/vendor/|/libexec/src/")
_PACKAGE_FILES = frozenset({"__init__.py", "__main__.py", "index.js", "index.ts", "index.mjs", "mod.rs"})


class Cause(Struct, frozen=True):
    """The parts of an error. `frame`: file:function, or ''. `title`: a line for people, and the only part with the
    message."""

    type: str
    frame: str
    title: str


class _Frame(Struct, frozen=True):
    path: str
    function: str
    own: bool

    def __str__(self) -> str:
        return f"{_file(self.path)}:{self.function}" if self.path else self.function


def fingerprint(topic: str, error: str | None) -> str:
    """Return the fingerprint of a dead letter, by its last error."""
    found = cause(error)
    return hashlib.sha256(f"{topic}\n{found.type}\n{found.frame}".encode("utf-8", "replace")).hexdigest()[:DIGITS]


def check_fingerprint(value: object) -> str:
    if not isinstance(value, str) or not _FINGERPRINT.fullmatch(value):
        raise InvalidInput("fingerprint", "bad_fingerprint", f"must be {DIGITS} of 0-9 a-f, not {value!r:.40}")
    return value


def cause(error: str | None) -> Cause:
    text = ends(error or "").removeprefix(_PREFIX)
    lines = text.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    return _of_python(lines) or _of_stack(lines, first) or _of_go(lines) or _of_words(first)


def ends(text: str) -> str:
    """Return both ends of a long error. Stores that read errors cut them in the same way."""
    return text if len(text) <= WHOLE else f"{text[:HALF]}{GAP}{text[-HALF:]}"


# ── Python ──


def _of_python(lines: list[str]) -> Cause | None:
    lines = _first_of_group(lines)
    header = max((n for n, line in enumerate(lines) if line.strip().endswith(_HEADER)), default=None)
    if header is None:
        return None
    frames: list[_Frame] = []
    said, torn = "", False
    for line in lines[header + 1 :]:
        if _LEFT_OUT.match(line):
            torn = True  # the next line begins somewhere
        elif torn:
            torn = False
        elif line.strip().startswith('File "'):
            frames += _python_frame(line.strip())
        elif line and not line[0].isspace():
            said = line
            break
    name = said.partition(":")[0].strip()
    return _cause(name if _NAME.fullmatch(name) else _words(said) or "Traceback", _innermost(reversed(frames)), said)


def _first_of_group(lines: list[str]) -> list[str]:
    """Return the lines of the first exception of an exception group, without the margin; else all lines."""
    leaf: list[str] | None = None
    for line in lines:
        if _FIRST_OF_GROUP.fullmatch(line):
            leaf = []  # or deeper
        elif leaf is not None:
            if line.lstrip().startswith("+-"):
                break
            margin, bar, rest = line.partition("| ")
            leaf.append(rest if bar and not margin.strip() else line)
    if not leaf:
        return lines
    return leaf if any(_HEADER in line for line in leaf) else [_HEADER, *leaf]


def _python_frame(line: str) -> list[_Frame]:
    path, line_number, rest = line.removeprefix('File "').partition('", line ')
    _, comma, function = rest.partition(", in ")
    if not line_number or not comma:  # where a SyntaxError is
        return []
    return [_Frame(path, function, _PYTHON_LIBRARY.search(path.replace("\\", "/")) is None)]


# ── JavaScript, Java, C#: "at" ──


def _of_stack(lines: list[str], first: str) -> Cause | None:
    begin = max((n for n, line in enumerate(lines) if line.lstrip().startswith("Caused by: ")), default=-1)
    said = first if begin < 0 else lines[begin].strip().removeprefix("Caused by: ")
    frame = _innermost(_stack_frame(line.strip()) for line in lines[begin + 1 :] if _is_at(line))
    if frame is None:
        return None
    # Uncaught TypeError: …, Exception in thread "main" java.lang.Error: …, Error [ERR_CODE]: …
    words = said.partition(": ")[0].rstrip(":").split()
    name = words[-1].strip("[]") if words else ""
    return _cause(name if _NAME.fullmatch(name) else _words(said), frame, said)


def _is_at(line: str) -> bool:
    return line[:1].isspace() and line.lstrip().startswith("at ")


def _stack_frame(line: str) -> _Frame:
    call, bracket, place = line.removeprefix("at ").removesuffix(")").partition("(")
    function = call.strip().removeprefix("async ").removeprefix("new ").partition(" [as ")[0].strip()
    if not bracket:
        function, place = "", function
    builtin = bool(_STACK_LIBRARY.search(place)) or function.startswith(_STACK_BUILTIN)
    place = place.partition(" ")[0]
    path = _without_position(place)
    return _Frame(path if path != place else "", function or "<anonymous>", not builtin)


def _without_position(place: str) -> str:
    """Return mail.js of mail.js?v=1:10:5."""
    path = place
    for _ in range(2):
        before, _, digits = path.rpartition(":")
        path = before if digits.isdigit() else path
    return path.partition("?")[0] if path != place else place


# ── Go ──


def _of_go(lines: list[str]) -> Cause | None:
    begin = next((n for n, line in enumerate(lines) if line.startswith("goroutine ") and line.endswith("]:")), None)
    if begin is None:
        return None
    said = next((line for line in lines[:begin] if line.startswith(("panic: ", "fatal error: "))), "panic")
    frames = []
    for call, place in zip(lines[begin + 1 :], lines[begin + 2 :], strict=False):
        if place.startswith("\t") and not call.startswith(("\t", "created by ", "panic(")):
            path = place.strip().partition(" ")[0]
            own = _GO_LIBRARY.search(path) is None
            frames.append(_Frame(_without_position(path), call.rpartition("(")[0], own))
    return _cause(_words(said), _innermost(frames), said)


# ── Any other text ──


def _of_words(line: str) -> Cause:
    name = line.partition(":")[0].strip()
    known = _NAME.fullmatch(name) and (name[0].isupper() or "." in name) and name not in _GENERIC
    return _cause(name if known else _words(line) or "No error", None, line)


def _words(line: str) -> str:
    """Return the first words of a line, without secrets and without values that differ each time."""
    short = _SECRET_LINE.sub(r"\1 #", line[:_LINE])
    short = replaced(short, ((name_end, end) for name_end, (_, end) in _SECRETS.find(short, value=_VALUE)), " #")
    short = _QUOTED.sub("#", _WORKER.sub(": worker", short.replace(UNSEEN_START, "")))
    words = ["#" if _names_one_thing(word) else word for word in short.split()]
    return " ".join(words[:_MOST_WORDS])


def _names_one_thing(word: str) -> bool:
    return len(word) > _LONGEST_WORD or bool(_TELLING.search(word) or _HEX.fullmatch(word))


def _innermost(frames: Iterable[_Frame]) -> _Frame | None:
    """Return the first frame of the application's own code, else the first. `frames`: the innermost first."""
    innermost: _Frame | None = None
    for frame in frames:
        if frame.own:
            return frame
        innermost = innermost or frame
    return innermost


def _file(path: str) -> str:
    """Return the file without directories, which differ by machine; a package's own file keeps the package's name."""
    *directories, name = path.replace("\\", "/").split("/")
    return f"{directories[-1]}/{name}" if name in _PACKAGE_FILES and directories else name


def _cause(name: str, frame: _Frame | None, said: str) -> Cause:
    title = " ".join(said[: 4 * _LONGEST].split()) or name
    return Cause(name[:_LONGEST], "" if frame is None else str(frame)[:_LONGEST], title[:_LONGEST])
