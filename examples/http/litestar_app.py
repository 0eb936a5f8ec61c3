"""rowlock's HTTP API inside a Litestar application, for the users who are logged in there.

ROWLOCK_URL=sqlite:///jobs.db uvicorn --app-dir examples/http litestar_app:app

Access rules are settings in the database. Without rules, users may do nothing. These rules let users enqueue, see and
cancel their own jobs:

own='scope_id = @request.auth.id'
rowlock settings set enqueue_rule="$own" view_rule="$own" cancel_rule="$own"
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Response, asgi, get, post
from litestar.connection import ASGIConnection, Request
from litestar.datastructures import Cookie
from litestar.exceptions import NotAuthorizedException
from litestar.types import Receive, Scope, Send

from rowlock import Jobs
from rowlock.http.request import Request as QueueRequest

jobs = Jobs()  # ROWLOCK_URL
sessions: dict[str, str] = {}  # cookie → user: a stand-in for the application's login


@jobs.task
async def report(title: str) -> str:
    return f"a report on {title}"


def user_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    return sessions.get(connection.cookies.get("session", ""))


def claims(request: QueueRequest) -> dict[str, str] | None:
    user = user_of(ASGIConnection(request.scope))  # type: ignore[arg-type] # it is Litestar's own
    return None if user is None else {"id": user}  # @request.auth in the rules


queue = jobs.asgi(authenticate=claims)


@asgi("/queue", is_mount=True, copy_scope=True)
async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    await queue(scope, receive, send)  # type: ignore[arg-type] # messages are mappings


@post("/login/{user:str}")
async def login(request: Request[Any, Any, Any]) -> Response[None]:
    cookie = secrets.token_urlsafe()
    sessions[cookie] = request.path_params["user"]
    return Response(None, cookies=[Cookie("session", value=cookie, httponly=True, samesite="lax")])


@post("/reports/{title:str}")
async def order(request: Request[Any, Any, Any]) -> dict[str, str]:
    user = user_of(request)
    if user is None:
        raise NotAuthorizedException
    made = await report.using(scope="user", scope_id=user).enqueue(request.path_params["title"])
    return {"id": made.id}


@get("/")
async def home() -> dict[str, str]:
    return {"application": "litestar"}


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    async with jobs:
        yield


app = Litestar([home, login, order, mounted], lifespan=[lifespan])
