"""Find secrets in a text: passwords in URLs, values behind secret names, and tokens that are known by their form.

Logs, fingerprints and redaction all use this module. Every search takes time in proportion to the text's length,
because callers choose the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

Span = tuple[int, int]

# Names that mean a credential in every application. Not what is private in one application and the purpose of another
# (email, phone, name): an operator who looks after failed mails must see their addresses. Nor a bare `key`, `auth` or
# `pin`: too many harmless things have these names. Plurals only where they are lists of credentials: `max_tokens`,
# `tokens_used` and `prompt_tokens` are numbers that people need to see.
SECRET_NAMES = (
    "*password*", "passwd", "*pwd", "*passphrase*", "*secret*", "*token", "tokens", "*access_tokens", "*accesstokens",
    "*refresh_tokens", "*refreshtokens", "*auth_tokens", "*authtokens", "*api_tokens", "*apitokens", "*api_key",
    "*apikey", "*api-key", "*api_keys", "*apikeys", "*api-keys", "*private_key", "*privatekey", "*access_key",
    "*accesskey", "credentials", "*authorization", "*cookie", "*cookies", "*jwt", "session_id", "session-id",
    "*sessionid", "*dsn", "card_number", "cardnumber", "cvv", "cvc",
)  # fmt: skip

_HEADERS = ("cookie", "cookies", "authorization")  # their value is the rest of the line
_WORD = re.compile(r"[\w-]*")
_SIGN = re.compile(r"""\\?["'`]?[ \t]*(?:=>|[=:])[ \t]*""")
_LONGEST = 16_384  # characters of a value in quotes
_LONGEST_NAME = 400  # characters before the part of a name by which it is found


def _quoted(quotes: str) -> str:
    """Return an expression whose group is the text to hide. Quotes stay, so that JSON in a text stays JSON."""
    some = [
        rf"-----BEGIN(?:[^\0]{{0,{_LONGEST}}}?-----END[^\n\0]*|[^\0]{{0,{_LONGEST}}})",  # a key in PEM has many lines
        *(rf"\\{quote}([^{quote}\0]{{0,{_LONGEST}}}?)\\?{quote}" for quote in quotes),
        *(rf"{quote}((?:[^{quote}\\\0]|\\[^\0]){{0,{_LONGEST}}}){quote}" for quote in quotes),
        rf"\\?[{quotes}]([^\r\n\0]*)",  # without an end: the rest of the line
    ]
    return "|".join(some)


_VALUE = re.compile(_quoted("\"'`") + r"""|(?:(?:bearer|basic|digest|token)[ \t]+)?[^\s&"'<>\0]+""", re.IGNORECASE)
_LINE = re.compile(_quoted("\"'") + r"|[^\r\n\0]+")

# scheme://user: and what may be a password: up to the last @ of the word, because many people don't escape it. Digits
# before a slash are a port.
_USER = re.compile(r"://[^\s/?#:@\[\]'\"\0]{0,200}:(?!\d{1,5}(?:[/?#\s'\"\0]|\Z))")
_END_OF_WORD = re.compile(r"[\s'\"\0]|\Z")

_TOKEN = re.compile(
    r"\brl[kso]_[0-9A-Za-z]{4}([0-9A-Za-z_]+)"  # rowlock's own: API tokens, sessions, one-time links
    r"|\b(?i:bearer)\s+([\w.~+/=-]{12,})"
    r"|(?<![\w-])(eyJ[\w-]{1,4000}\.[\w-]{1,8000}\.[\w-]*)"  # a JWT
)


class TooMany(Exception):
    """The text has more names than a caller wants to look at."""


def glob(name: str) -> str:
    """Return a regular expression for a name in which * stands for anything but NUL. It never goes back over a *."""
    first, *rest = map(re.escape, name.split("*"))
    inner = "".join(rf"(?>[^\0]*?{part})" for part in rest[:-1])
    return first + inner + rf"[^\0]*{rest[-1]}" if rest else first


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that matches a whole name that one of `names` fits."""
    return re.compile(rf"(?:{'|'.join(map(glob, sorted(names))) or '(?!)'})\Z")


def part_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that finds a part of every such name: a fast way to rule a name or a text out."""
    return re.compile("|".join(sorted(re.escape(max(name.split("*"), key=len)) for name in names)))


class NamedValues:
    """Finds name=value, name: value and "name": "value" for names in lower case, such as `*_token`.

    `apart`: search for each name by itself, so that a name counts although it stands in the value of another one.
    """

    def __init__(self, names: Iterable[str], *, apart: bool = True) -> None:
        wanted = sorted(name for name in names if name.strip("*"))  # * alone would be every word
        groups = [[name] for name in wanted] if apart else [wanted]
        self._names = [(part_of(group), any_of(group)) for group in groups]

    def find(
        self, text: str, *, value: re.Pattern[str] | None = None, most: int | None = None
    ) -> Iterator[tuple[int, Span]]:
        """Yield where a name ends, and the span of its value. `value`: what a value is, instead of the usual. `most`:
        raise TooMany after so many names, with or without a value."""
        if "=" not in text and ":" not in text:
            return
        lower = text.lower()
        if len(lower) != len(text):  # İ in lower case is two characters
            lower = text.translate(_ASCII_LOWER)
        seen = 0
        for part, fits in self._names:
            end = 0
            while found := part.search(lower, end):
                seen += 1
                if seen == most:
                    raise TooMany
                begin = found.start()
                least = max(end, begin - _LONGEST_NAME)
                while begin > least and (lower[begin - 1].isalnum() or lower[begin - 1] in "_-"):
                    begin -= 1
                name_end = end = _end(_WORD, lower, found.end())
                name = lower[begin:name_end]
                sign = _SIGN.match(text, name_end) if fits.match(name) else None
                if sign is not None:
                    kind = value or (_LINE if name.endswith(_HEADERS) else _VALUE)
                    if (shown := kind.match(text, sign.end())) is not None:
                        end = shown.end()
                        yield name_end, shown.span(shown.lastindex or 0)


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
USUAL = NamedValues(SECRET_NAMES)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def url_passwords(text: str) -> Iterator[Span]:
    """Yield where passwords stand in URLs: scheme://user:password@host."""
    end = last = 0  # of the word that was looked at: its end, and its last @
    found = _USER.search(text) if "://" in text else None
    while found is not None:
        begin = found.end()
        if begin >= end:
            word = _END_OF_WORD.search(text, begin)
            end = len(text) if word is None else word.start()
            last = text.rfind("@", begin, end)
        if begin < last:
            yield begin, last
        found = _USER.search(text, max(begin, last))


def replaced(text: str, spans: Iterable[Span], mark: str) -> str:
    """Return the text with the mark in place of these spans, which may overlap."""
    parts, done = list[str](), 0
    for begin, end in sorted(spans):
        if begin >= done:
            parts += [text[done:begin], mark]
        done = max(done, end)
    return "".join([*parts, text[done:]]) if parts else text


def without_secrets(text: str, mark: str) -> str:
    """Return the text with the mark in place of everything that looks like a secret."""
    text = replaced(text, url_passwords(text), mark)
    text = replaced(text, (span for _, span in USUAL.find(text)), mark)
    return replaced(text, (found.span(found.lastindex or 0) for found in _TOKEN.finditer(text)), mark)
