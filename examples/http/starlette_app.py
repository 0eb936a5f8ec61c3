"""rowlock's HTTP API inside a Starlette application, for the users who are logged in there.

ROWLOCK_URL=sqlite:///jobs.db uvicorn --app-dir examples/http starlette_app:app

Access rules are settings in the database. Without rules, users may do nothing. These rules let users enqueue, see and
cancel their own jobs:

own='scope_id = @request.auth.id'
rowlock settings set enqueue_rule="$own" view_rule="$own" cancel_rule="$own"
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from rowlock import Jobs
from rowlock.http.request import Request as QueueRequest

jobs = Jobs()  # ROWLOCK_URL
sessions: dict[str, str] = {}  # cookie → user: a stand-in for the application's login


@jobs.task
async def report(title: str) -> str:
    return f"a report on {title}"


class Cookies(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        user = sessions.get(conn.cookies.get("session", ""))
        return None if user is None else (AuthCredentials(["authenticated"]), SimpleUser(user))


async def login(request: Request) -> Response:
    cookie = secrets.token_urlsafe()
    sessions[cookie] = request.path_params["user"]
    response = Response()
    response.set_cookie("session", cookie, httponly=True, samesite="lax")
    return response


@requires("authenticated", status_code=401)
async def order(request: Request) -> Response:
    owner = request.user.display_name
    made = await report.using(scope="user", scope_id=owner).enqueue(request.path_params["title"])
    return JSONResponse({"id": made.id})


async def home(request: Request) -> Response:
    return JSONResponse({"application": "starlette"})


def claims(request: QueueRequest) -> dict[str, str] | None:
    """Return @request.auth of the rules. The middleware has run: it also wraps mounted applications."""
    user = request.scope["user"]
    return {"id": user.display_name} if user.is_authenticated else None


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with jobs:
        yield


app = Starlette(
    routes=[
        Route("/", home),
        Route("/login/{user}", login, methods=["POST"]),
        Route("/reports/{title}", order, methods=["POST"]),
        Mount("/queue", jobs.asgi(authenticate=claims)),
    ],
    middleware=[Middleware(AuthenticationMiddleware, backend=Cookies())],
    lifespan=lifespan,
)
