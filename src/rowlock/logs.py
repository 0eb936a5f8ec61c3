"""Log lines for people (text) or for machines (one JSON object per line), without secrets.

{"time": "2026-01-31T08:15:00.123Z", "level": "WARNING", "logger": "rowlock", "message": "…", "job_id": "…", …}
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Literal

from rowlock.core import secrets_in_text
from rowlock.errors import InvalidInput

FORMAT = "ROWLOCK_LOG_FORMAT"  # environment variable, which child processes inherit
TEXT = "%(asctime)s %(levelname)-7s %(message)s"
FIELDS = ("job_id", "topic", "version", "worker", "request_id", "identity")
"""What a line may carry beside its message: `extra={"job_id": …}`. All other attributes of a record are left out,
because they may hold secrets."""


def without_secrets(text: str) -> str:
    """Return the text with … in place of everything that looks like a secret. This is only the last check: the code
    that logs should not have put a secret there."""
    return secrets_in_text.without_secrets(text, "…")


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value if isinstance(value, int | float) else without_secrets(str(value))
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = without_secrets(self.formatStack(record.stack_info))
        return json.dumps(line)  # in ASCII: it passes through any terminal, pipe and locale


def set_up(format: Literal["text", "json"] | None = None, *, verbose: bool = False) -> None:
    """Log to stderr, unless logging has been set up already. `format` None: that of ROWLOCK_LOG_FORMAT, or text.
    `verbose`: log every job."""
    wanted = format or os.environ.get(FORMAT) or "text"
    if wanted not in ("text", "json"):
        raise InvalidInput("log_format", "unknown_format", f"must be text or json, not {wanted!r:.40}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if wanted == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
