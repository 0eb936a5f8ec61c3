"""Health: tells orchestrators whether the workers work. A worker is live while its claim loop turns."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("rowlock")


class Health:
    """`file`: written every second while every worker's claim loop turns, so its age shows a stop. Removed at the end.
    `address` (host, port): answers HTTP GET with 200 or 503. `patience`: seconds that a claim loop may stand still.
    While the database is away the loops turn: they go on trying."""

    def __init__(self, *, file: str | None, address: tuple[str, int] | None, patience: float) -> None:
        self._file = None if file is None else Path(file)
        self._patience = patience
        self._report: dict[str, Any] = {"live": False, "processes": 0}
        self._written = 0.0
        self._complained = False
        self._server: Any = None
        if address is not None:
            self._serve(address)

    @property
    def port(self) -> int | None:
        return None if self._server is None else int(self._server.server_address[1])

    def update(self, ticks: Sequence[float], wanted: int) -> None:
        """`ticks`: when each claim loop last turned, by time.monotonic(); `wanted`: how many there should be."""
        now = time.monotonic()
        working = sum(now - tick <= self._patience for tick in ticks)
        self._report = {"live": working == wanted, "processes": wanted, "working": working}
        if self._file is not None and working == wanted and now - self._written >= 1.0:
            self._written = now
            self._write(self._file)

    def _write(self, file: Path) -> None:
        fresh = file.with_name(f"{file.name}.new")
        try:
            fresh.write_text(json.dumps(self._report) + "\n")
            fresh.replace(file)
            self._complained = False
        except OSError as error:  # a full disk, a missing folder: no reason to end the workers
            if not self._complained:
                log.error("the health file can't be written: %s", error)
            self._complained = True

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _serve(self, address: tuple[str, int]) -> None:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # slow to import, and rarely needed

        health = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                report = health._report
                body = json.dumps(report).encode() + b"\n"
                self.send_response(200 if report["live"] else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(address, Answer)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="rowlock-health", daemon=True).start()
