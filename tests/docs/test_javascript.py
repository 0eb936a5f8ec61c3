"""The code of docs/javascript.md runs against a real server: workers by `rowlock-worker`, programs by Node."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rowlock import Jobs
from rowlock.access import tokens
from tests.js.conftest import no_node, serving

ROOT = Path(__file__).parents[2]
JS = ROOT / "js"
PAGE = (ROOT / "docs" / "javascript.md").read_text("utf-8")
BLOCK = re.compile(
    r"(?:^<!-- run(?:: (?P<said>[^\n]*?))? -->\n)?^```(?P<kind>js|ts)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
TSC = JS / "node_modules" / "typescript" / "bin" / "tsc"
FIRST_WITH_TYPES = (22, 18)
needs_node = pytest.mark.skipif(no_node() is not None, reason=str(no_node()))
needs_tsc = pytest.mark.skipif(not TSC.exists(), reason="needs js/node_modules: make js")


class Block(NamedTuple):
    """A block of code. `said`: the output that it must print; None if it is not run; '' if it is a module of
    workers."""

    kind: str
    text: str
    said: str | None
    name: str


def blocks() -> list[Block]:
    found = []
    for n, match in enumerate(BLOCK.finditer(PAGE), 1):
        named = re.match(r"// (\S+\.(?:ts|mjs))\n", match["text"])
        runs = match[0].startswith("<!-- run")
        suffix = "mjs" if match["kind"] == "js" else "ts"
        name = named[1] if named else f"block_{n}.{suffix}"
        found.append(Block(match["kind"], match["text"], (match["said"] or "") if runs else None, name))
    return found


def runs_types() -> bool:
    version = subprocess.check_output(["node", "--version"], text=True).lstrip("v").split(".")
    return (int(version[0]), int(version[1])) >= FIRST_WITH_TYPES


def tsc(folder: Path, *options: str) -> None:
    given = [
        "--strict", "--target", "ES2022", "--module", "NodeNext", "--lib", "ES2023,DOM,DOM.Iterable,DOM.AsyncIterable",
        "--skipLibCheck", "--types", "node", "--typeRoots", str(JS / "node_modules" / "@types"),
        *options, *(one.name for one in sorted(folder.glob("*.ts"))),
    ]  # fmt: skip
    ended = subprocess.run(["node", str(TSC), *given], cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a project that has the package installed."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "rowlock").symlink_to(JS, target_is_directory=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


@pytest.fixture
async def environ(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Run a server. Yield the environment variables that the page tells the reader to export."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    async with Jobs(url) as jobs:
        _, token = await tokens.create(
            await jobs._store(), "shop", ["enqueue", "manage", "worker", "flows", "tokens"], by="test"
        )
    with serving(url, folder) as address:
        yield {**os.environ, "ROWLOCK_API": address, "ROWLOCK_TOKEN": token, "ROWLOCK_URL": url}


@contextmanager
def working(folder: Path, name: str, environ: dict[str, str]) -> Iterator[None]:
    """Run a module of workers as the page says. In the end, the worker stops with exit code 0."""
    program = folder / "node_modules" / "rowlock" / "dist" / "bin" / "rowlock-worker.js"
    process = subprocess.Popen(["node", str(program), name], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert " runs " in line, line + process.stderr.read()
        yield
        process.terminate()
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_the_page_has_blocks_that_run() -> None:
    found = blocks()
    assert sum(one.kind == "ts" and one.said == "" for one in found) >= 3
    assert sum(one.kind == "js" and bool(one.said) for one in found) >= 8
    assert all(one.said for one in found if one.kind == "js"), "a program says what it prints: <!-- run: … -->"
    assert len({one.name for one in found}) == len(found)


@needs_node
def test_its_programs_and_workers_run(folder: Path, environ: dict[str, str]) -> None:
    has_types = runs_types()
    if not has_types and not TSC.exists():
        pytest.skip("needs Node 22.18, or js/node_modules: make js")
    for one in blocks():
        if one.said is not None:
            (folder / one.name).write_text(one.text)
    if not has_types:
        tsc(folder)
    with ExitStack() as workers:
        for one in blocks():
            if one.said == "":
                workers.enter_context(working(folder, one.name if has_types else f"{Path(one.name).stem}.js", environ))
            elif one.said is not None:
                ended = subprocess.run(
                    ["node", one.name], cwd=folder, env=environ, capture_output=True, text=True, timeout=100
                )
                assert (ended.returncode, ended.stdout) == (0, one.said + "\n"), f"{one.text}\n{ended.stderr}"


@needs_node
def test_the_blocks_of_the_readme_run(folder: Path, environ: dict[str, str]) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    workers, program = re.findall(r"^```js\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (folder / "workers.mjs").write_text(workers)
    assert program.count("http://127.0.0.1:8090") == 1
    (folder / "greet.mjs").write_text(program.replace("http://127.0.0.1:8090", environ["ROWLOCK_API"]))
    with working(folder, "workers.mjs", environ):
        ended = subprocess.run(
            ["node", "greet.mjs"], cwd=folder, env=environ, capture_output=True, text=True, timeout=100
        )
    assert ended.returncode == 0, ended.stderr
    *states, result = ended.stdout.splitlines()
    assert states[-1].startswith("completed "), states
    assert result == "hello Ada"


@needs_node
@needs_tsc
def test_its_types_hold(folder: Path) -> None:
    """`topics.ts` is made from the page's Python file, by the page's commands."""
    [app] = re.findall(r"^```py\n# app.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "app.py").write_text(app)
    environ = {**os.environ, "ROWLOCK_URL": "sqlite:///jobs.db"}
    commands = re.findall(r"^rowlock (templates (?:publish|types) .+)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in ("migrate", *commands):
        subprocess.run(
            [sys.executable, "-m", "rowlock", *command.split()], cwd=folder, env=environ, check=True, timeout=60,
            capture_output=True,
        )  # fmt: skip
    for one in blocks():
        if one.kind == "ts":
            (folder / one.name).write_text(one.text)
    tsc(folder, "--noEmit", "--allowImportingTsExtensions")


@needs_node
@needs_tsc
def test_a_wrong_type_is_noticed(folder: Path) -> None:
    """The type check can fail."""
    (folder / "wrong.ts").write_text(
        'import { Final } from "rowlock/worker";\nexport const wrong: number = new Final("");\n'
    )
    with pytest.raises(AssertionError, match="TS2322"):
        tsc(folder, "--noEmit")


@needs_node
def test_the_options_of_the_command_are_those_of_its_help() -> None:
    program = JS / "dist" / "bin" / "rowlock-worker.js"
    told = subprocess.check_output(["node", str(program), "--help"], text=True, timeout=60)
    told_options = set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE)) - {"--version"}
    section = PAGE[PAGE.index("## The command") : PAGE.index("| exit code |")]
    options = set(re.findall(r"`(--[a-z-]+)", "".join(re.findall(r"^\| (`--.*?) \|", section, re.MULTILINE))))
    assert options == told_options
