"""The npm package's client, against a real server. The tests themselves are in js/test."""

import json
import re

import pytest

from rowlock import __version__
from tests.js.conftest import ROOT, Served

JS = ROOT / "js"


pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("test", ["client", "flows", "retries", "watch", "seed"])
def test_client(served: Served, test: str) -> None:
    served.run(f"{test}.test.js")


def test_the_package_has_the_version_of_the_server() -> None:
    assert json.loads((JS / "package.json").read_text())["version"] == __version__
    assert json.loads((JS / "package-lock.json").read_text())["version"] == __version__


def test_the_client_needs_nothing_of_node() -> None:
    """Browsers, Deno and Bun can load the built client as it is."""
    seen: set[str] = set()
    todo = ["index.js"]
    while todo:
        name = todo.pop()
        seen.add(name)
        text = (JS / "dist" / name).read_text()
        imports = re.findall(r'(?:from|import) ?\(?"([^"]+)"', text)
        assert all(one.startswith("./") for one in imports), (name, imports)
        assert not re.search(r"\b(process|Buffer|require|localStorage|sessionStorage|eval)\b[.(]", text), name
        todo += [one.removeprefix("./") for one in imports if one.removeprefix("./") not in seen]
    assert {"client.js", "jobs.js", "request.js", "stream.js"} <= seen
