"""Find the caller of a request: by the application's hook, a token, a JWT or a session. And refuse foreign hosts and
pages."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from rowlock.access import secrets, sessions, superusers, tokens
from rowlock.access.identity import ANONYMOUS, Identity, user
from rowlock.access.jwt import BadClaim
from rowlock.access.record_batches import RecordBatches
from rowlock.http.problems import Problem
from rowlock.http.request import Request
from rowlock.http.sessions import shown_session
from rowlock.http.settings import ApiSettings
from rowlock.stores.base import Store
from rowlock.stores.records import Record

log = logging.getLogger("rowlock.http")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CSRF_HEADER = "x-rowlock-csrf"
_KEPT = 1000  # identities of tokens that are remembered
_PROXIES = 20  # that are logged as not trusted: any client can send such a header
_TOUCH = 60.0  # seconds between two records of the last use


class Authenticator:
    """Finds callers for one event loop."""

    def __init__(self, settings: ApiSettings, store: Callable[[], Awaitable[Store]]) -> None:
        self._settings = settings
        self._store = store
        self._verifier = settings.verifier()
        self._own = settings.own_origin
        self._tokens = RecordBatches(store, tokens.KIND)
        self._sessions = RecordBatches(store, sessions.KIND)
        self._superusers = RecordBatches(store, superusers.KIND)
        self._known: dict[tuple[str, int], Identity] = {}  # by the token's id and revision
        self._touched: dict[str, float] = {}  # when the last use is recorded next
        self._hosts: set[str] = set()  # that were allowed
        self._proxies: set[str] = set()  # that are not trusted, and were logged

    # ── Host and origin ──

    def check_host(self, request: Request) -> None:
        """Refuse host names that are not ours, against DNS rebinding."""
        allowed, host = self._settings.allowed_hosts, request.host
        if allowed is None or host in self._hosts:
            return
        if host_name(host) not in allowed:
            raise Problem("wrong_host", "this server doesn't answer to that name", field="host")
        if len(self._hosts) < _KEPT:
            self._hosts.add(host)

    def note_proxy(self, request: Request) -> None:
        """Log once for each proxy that it is not trusted. All clients behind it have its address here, also for the
        limits of failed logins and streams. For a trusted proxy, the server has already put in the client's address."""
        for name in ("x-forwarded-for", "forwarded"):
            told, address = request.headers.get(name), request.client
            if told is None or address in told or address in self._proxies or len(self._proxies) >= _PROXIES:
                continue
            self._proxies.add(address)
            log.warning(
                "%s sends the header %s, but is not trusted: everyone behind it counts as one address. If it is your "
                "proxy, name it in trusted_proxies (rowlock serve --trusted-proxy %s), and let it send X-Forwarded-For",
                address, name, address,
            )  # fmt: skip

    def check_origin(self, request: Request) -> str | None:
        """Return the foreign origin if it is allowed, None for our own. Refuse all other origins, whatever credentials
        they send."""
        origin = request.headers.get("origin")
        if origin is not None:
            if origin in self._settings.origins:
                return origin
            if not self._is_own(request, origin):
                raise _foreign()
        elif request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not _is_visit(request):
            raise _foreign()
        return None

    def _is_other(self, request: Request) -> bool:
        origin = request.headers.get("origin")
        return origin is not None and not self._is_own(request, origin)

    def _is_own(self, request: Request, origin: str) -> bool:
        if (own := self._own) is not None:
            return origin == own
        return origin == f"{'https' if request.is_secure else 'http'}://{request.host}"

    def _check_ambient(self, request: Request) -> None:
        """Check a caller whom the application knows, perhaps by a cookie: the same rules as for our own cookie."""
        if self._is_other(request) and request.method not in ("GET", "HEAD"):
            raise _foreign()
        self._check_csrf(request)

    def _check_csrf(self, request: Request) -> None:
        """Refuse a cookie without proof that our own page sent the request. A browser also sends the cookie for a
        foreign page. The proof is the origin, which was checked, or a header that a foreign page can't set."""
        if request.method in ("GET", "HEAD"):
            return
        headers = request.headers
        if not ("origin" in headers or headers.get("sec-fetch-site") == "same-origin" or CSRF_HEADER in headers):
            text = f"a session needs the header Origin, Sec-Fetch-Site or {CSRF_HEADER}"
            raise Problem("csrf", text, field="origin")

    # ── Identity ──

    async def identify(self, request: Request) -> Identity:
        """Return the caller. A bad credential is an error, never anonymous."""
        if self._settings.authenticate is not None:
            found = self._settings.authenticate(request)
            if inspect.isawaitable(found):
                found = await found
            if found is not None and not isinstance(found, Identity):
                found = user(found) if found.get("id") not in (None, "") else None  # the hook says: not logged in
            if found is not None:
                if "cookie" in request.headers and "authorization" not in request.headers:
                    self._check_ambient(request)
                return found
        if (header := request.headers.get("authorization")) is not None:
            return await self._bearer(header)
        # An allowed page of another origin uses a token. The browser may send the cookie as well, which does not count.
        shown = None if self._is_other(request) else shown_session(request)
        if shown is not None:
            identity = await self._session(shown)
            if identity is not None:
                self._check_csrf(request)
                return identity
        return ANONYMOUS  # also with an expired session: the page shows the login

    async def _bearer(self, header: str) -> Identity:
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthenticated("the header Authorization must begin with Bearer")
        if text.startswith(f"{secrets.KINDS['token']}_"):
            found = await self._token(secrets.read("token", text))
        else:
            found = await self._user(text)
        if found is None:
            raise _unauthenticated("this token is unknown, expired or revoked")
        return found

    async def _user(self, text: str) -> Identity | None:
        try:
            return None if self._verifier is None else await self._verifier.identify(text)
        except BadClaim as error:
            raise Problem(error.code, str(error), field=error.claim, headers=_REFUSED) from None

    async def _token(self, shown: secrets.Shown | None) -> Identity | None:
        record = None if shown is None else await self._tokens.get(shown.id)
        if shown is None or record is None or not shown.matches(record.data["hash"]):
            return None
        await self._touch(record, tokens.touch)
        known = self._known.get((record.id, record.revision))
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[record.id, record.revision] = tokens.identity(tokens.from_record(record))
        return known

    async def _session(self, shown: secrets.Shown) -> Identity | None:
        record = await self._sessions.get(shown.id)
        if record is None or not shown.matches(record.data["hash"]):
            return None
        session = sessions.from_record(record)
        owner = await self._superusers.get(session.email)
        if owner is None or owner.data["stamp"] != session.stamp or session.ends <= datetime.now(UTC):
            return None
        await self._touch(record, sessions.touch)
        return superusers.from_record(owner).identity

    async def _touch(self, record: Record, touch: Callable[[Store, Record, datetime], Awaitable[None]]) -> None:
        """Record the last use: at most once a minute, and without failing the request."""
        now = time.monotonic()
        if now < self._touched.get(record.id, now):
            return
        if len(self._touched) >= _KEPT:
            self._touched.clear()
        self._touched[record.id] = now + _TOUCH
        if self._settings.read_only:
            return
        try:
            await touch(await self._store(), record, datetime.now(UTC))
        except Exception as error:
            log.warning("the last use of %s can't be written down: %s", record.id, error)


def host_name(host: str) -> str:
    """Return the host without its port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    return name.removeprefix("[").removesuffix("]")


def _is_visit(request: Request) -> bool:
    """True if a person follows a link to the admin page, such as from a mail. The other page can't read the answer."""
    to_page = request.path in ("/", "/_", "/_/setup") and request.method in ("GET", "HEAD")
    return to_page and request.headers.get("sec-fetch-mode") == "navigate"


def _foreign() -> Problem:
    return Problem("cross_origin", "pages of other origins may not call this", field="origin")


_REFUSED = {"www-authenticate": 'Bearer error="invalid_token"'}


def _unauthenticated(detail: str) -> Problem:
    return Problem("not_authenticated", detail, headers=_REFUSED)
