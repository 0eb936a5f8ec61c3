"""The files of the admin page: how they are sent and cached, and what the page may do in a browser."""

import gzip
import re
import socket

import pytest

from rowlock import Jobs
from rowlock.http import ui
from tests.http.harness import ANYONE, Place, World, is_problem
from tests.proxy import Proxy

LARGEST = 170_000  # bytes of all files together, as they are sent


async def test_the_page_may_run_only_its_own_scripts(sqlite_world: World) -> None:
    page = await sqlite_world.get(ANYONE, "/_/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=|https?://", page.text)


async def test_all_its_addresses_are_relative_and_lead_somewhere(sqlite_world: World) -> None:
    page = await sqlite_world.get(ANYONE, "/_/")
    found = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(found) == 3
    for address in found:
        assert address.startswith("./")
        assert (await sqlite_world.get(ANYONE, f"/_/{address[2:]}")).status_code == 200


@pytest.mark.parametrize(("asked", "place"), [("/", "_/"), ("/_", "_/"), ("/_/jobs", "./#/jobs")])
async def test_who_comes_by_another_door_is_led_to_it(sqlite_world: World, asked: str, place: str) -> None:
    answer = await sqlite_world.get(ANYONE, asked)
    assert (answer.status_code, answer.headers["location"]) == (307, place)


async def test_files_with_a_hash_are_kept_and_the_others_are_asked_for(sqlite_world: World) -> None:
    for name, file in ui._files().items():
        answer = await sqlite_world.get(ANYONE, f"/_/{name}" if name != "index.html" else "/_/")
        kept = "immutable" in answer.headers["cache-control"]
        assert kept == ("-" in name)
        assert answer.headers.get_list("cache-control") == [answer.headers["cache-control"]]
        known = {"if-none-match": answer.headers["etag"]}
        again = await sqlite_world.get(ANYONE, f"/_/{name}" if name != "index.html" else "/_/", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert answer.headers["content-type"] == file.media


async def test_everything_together_is_small_and_sent_packed(sqlite_world: World) -> None:
    total = 0
    for name, file in ui._files().items():
        packed = await sqlite_world.get(ANYONE, f"/_/{name}", headers={"accept-encoding": "br, gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == file.plain  # httpx has unpacked it
        assert gzip.decompress(file.packed) == file.plain
        total += len(file.packed)
        plain = await sqlite_world.get(ANYONE, f"/_/{name}", headers={"accept-encoding": "identity"})
        assert plain.content == file.plain
        assert "content-encoding" not in plain.headers
    assert 10_000 < total < LARGEST


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "built-from.txt", "__init__.py"])
async def test_nothing_else_is_there(sqlite_world: World, name: str) -> None:
    is_problem(await sqlite_world.get(ANYONE, f"/_/{name}"), 404)


async def test_a_link_from_elsewhere_opens_the_page_and_nothing_more(sqlite_world: World) -> None:
    """The link may stand in a mail, in a chat or on another site."""
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await sqlite_world.get(ANYONE, "/_/", headers=followed)).status_code == 200
    is_problem(await sqlite_world.get("superuser", "/api/jobs", headers=followed), 403)
    read = {**followed, "sec-fetch-mode": "no-cors"}
    is_problem(await sqlite_world.get(ANYONE, "/_/", headers=read), 403)
    is_problem(await sqlite_world.get("superuser", "/_/me", headers=followed), 403)


async def test_nobody_is_an_answer_to_who_looks(sqlite_world: World) -> None:
    assert (await sqlite_world.get(ANYONE, "/_/me")).json()["kind"] == "anonymous"
    assert (await sqlite_world.get("superuser", "/_/me")).json()["kind"] == "superuser"


# ── Without the database ──


@pytest.mark.parametrize("listens", [False, True], ids=["refused", "silent"])
async def test_its_files_are_there_without_the_database(listens: bool) -> None:
    """This holds even if the database accepts connections and never answers, and for any session of the browser."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        url = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none"
        world = World(Place("postgres", url), Jobs(url))
        for path in ("/_/", "/_/setup", *(f"/_/{name}" for name in ui._files())):
            answer = await world.get(ANYONE, path, headers={"cookie": "rowlock_session=rls_x"})
            assert answer.status_code == 200, path
        if not listens:
            assert (await world.get(ANYONE, "/_/me")).status_code == 503
        await world.jobs.close()


async def test_a_page_that_was_switched_off_stays_so_without_the_database(postgres_world: World) -> None:
    url = postgres_world.place.url
    async with Proxy.before(url) as proxy, Jobs(proxy.through(url)) as jobs:
        api = jobs.asgi()
        await postgres_world.change_settings(http_enabled=False)
        is_problem(await postgres_world.get(ANYONE, "/_/", api=api), 404, "http_disabled")
        proxy.cut()
        api.state.read_at = 0.0  # a while later
        is_problem(await postgres_world.get(ANYONE, "/_/", api=api), 404, "http_disabled")
        proxy.mend()
