"""What means a secret wherever it stands: names of fields, and passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Names that mean a credential wherever they stand. Not what is private in one application and the whole point of
# another (email, phone, name): who looks after failed mails must see to whom they went. Nor a bare `key`, `auth` or
# `pin`: too many harmless things are called so. Of names in the plural only those that are lists of credentials:
# `max_tokens`, `tokens_used` and `prompt_tokens` are numbers that people need to see.
SECRET_NAMES = (
    "*password*", "passwd", "*pwd", "*passphrase*", "*secret*", "*token", "tokens", "*access_tokens", "*accesstokens",
    "*refresh_tokens", "*refreshtokens", "*auth_tokens", "*authtokens", "*api_tokens", "*apitokens", "*api_key",
    "*apikey", "*api-key", "*api_keys", "*apikeys", "*api-keys", "*private_key", "*privatekey", "*access_key",
    "*accesskey", "credentials", "*authorization", "*cookie", "*cookies", "*jwt", "session_id", "session-id",
    "*sessionid", "*dsn", "card_number", "cardnumber", "cvv", "cvc",
)  # fmt: skip

# scheme://user: and what may be a password: up to the last @ of the word, because many people don't escape it. Digits
# before a slash are a port.
_USER = re.compile(r"://[^\s/?#:@\[\]'\"\0]{0,200}:(?!\d{1,5}(?:[/?#\s'\"\0]|\Z))")
_END_OF_WORD = re.compile(r"[\s'\"\0]|\Z")


def url_passwords(text: str) -> Iterator[tuple[int, int]]:
    """Where passwords stand in URLs: scheme://user:password@host."""
    end = last = 0  # of the word that was looked at: its end, and its last @
    found = _USER.search(text)
    while found is not None:
        begin = found.end()
        if begin >= end:
            word = _END_OF_WORD.search(text, begin)
            end = len(text) if word is None else word.start()
            last = text.rfind("@", begin, end)
        if begin < last:
            yield begin, last
        found = _USER.search(text, max(begin, last))


def hide_url_passwords(text: str, mark: str) -> str:
    if "://" not in text:
        return text
    told, done = [], 0
    for begin, end in url_passwords(text):
        told += [text[done:begin], mark]
        done = end
    return "".join([*told, text[done:]]) if told else text
