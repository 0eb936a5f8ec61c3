"""The tutorial, pasted command by command into an empty folder, with rowlock installed from a wheel.

- A block after "Put this into `NAME`:" is a file.
- A block `sh` is pasted into the first terminal. A block `text` after it is what it must print.
- A block `sh terminal-2` is pasted into the second terminal, and runs until the next block for that terminal.
- A block `sh by-hand` can't run here.
"""

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.servers import _free_port
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(
    r"(?:[Pp]ut this into `(?P<file>[^`\n]+)`:\n\n)?"
    r"^```(?P<kind>.+)\n(?P<body>(?s:.*?))^```\n"
    r"(?:\n```text\n(?P<shown>(?s:.*?))^```\n)?",
    re.MULTILINE,
)
POSTGRES = "postgresql://postgres:secret@127.0.0.1:5432/postgres"


class Block(NamedTuple):
    file: str | None
    kind: str
    body: str
    shown: str | None


BLOCKS = [Block(*found.groups()) for found in BLOCK.finditer((ROOT / "docs/tutorial.md").read_text("utf-8"))]
FILES = {block.file: block.body for block in BLOCKS if block.file}  # the last version of each


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True)
    return folder


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all packages of the tests' environment except rowlock, so that pip downloads nothing."""
    folder = tmp_path_factory.mktemp("dependencies")
    for installed in Path(site.getsitepackages()[0]).iterdir():
        if "rowlock" not in installed.name and installed.suffix != ".pth":
            (folder / installed.name).symlink_to(installed)
    return folder


def plain(line: str) -> str:
    """Return the line without the parts that differ from run to run: ids, times, and the widths of columns."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "ID", line)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", " ".join(line.split()))


def agrees(printed: str, shown: str) -> bool:
    """True if exactly the lines of `shown` were printed. `…` stands for anything, alone in a line for any lines."""
    pattern = ""
    for line in shown.splitlines():
        parts = re.split(" ?… ?", plain(line))
        pattern += r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, parts)) + r"\n"
    return re.fullmatch(pattern, "".join(f"{plain(line)}\n" for line in printed.splitlines())) is not None


class Reader:
    """A reader who follows the tutorial."""

    def __init__(self, folder: Path, wheels: Path, dependencies: Path, database: str) -> None:
        self.folder = folder
        self.dependencies = dependencies
        self.state = folder / "state.sh"  # the folder and the variables of the first terminal
        self.state.write_text("")
        self.port, self.health_port = str(_free_port()), str(_free_port())
        self.replaced = {
            POSTGRES: database,
            POSTGRES.replace("127.0.0.1", "db"): database,
            "8000": self.port,
            "8081": self.health_port,
            "/srv/shop": str(folder / "shop"),
            "python3 -m venv": f"{shlex.quote(sys.executable)} -m venv --without-pip",  # pip is among the dependencies
        }
        self.environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        for there, here in self.replaced.items():
            text = text.replace(there, here)
        return text

    def follow(self, block: Block) -> None:
        if block.file:
            if not block.file.startswith("/"):
                (self.folder / "shop" / block.file).write_text(self.here(block.body))
        elif block.kind == "sh":
            self.check(block)
        elif block.kind.startswith("sh terminal-"):
            self.stop(block.kind)
            self.start(block.kind, block.body, self.here(block.shown or ""))

    def check(self, block: Block) -> None:
        """Paste the block, and compare its output. Repeat a block that only lists jobs until the jobs have ended."""
        shown, deadline = self.here(block.shown or ""), time.monotonic() + PATIENCE
        printed = self.paste(block.body)
        while not agrees(printed, shown) and block.body.startswith("rowlock jobs list") and time.monotonic() < deadline:
            printed = self.paste(block.body)
        assert agrees(printed, shown), f"{block.body}\nprinted\n{printed}\nnot\n{shown}"

    def paste(self, commands: str) -> str:
        """Paste the commands into the first terminal. Return what they print."""
        remember = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {self.state}"
        ended = subprocess.run(
            ["bash", "-c", f"set -ae\n. {self.state}\n{self.here(commands)}\n{remember}"],
            cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert ended.returncode == 0, f"{commands}\n{ended.stdout}"
        if "-m venv" in commands:
            [packages] = self.folder.glob("shop/.venv/lib/python3*/site-packages")
            (packages / "dependencies.pth").write_text(f"{self.dependencies}\n")
        return ended.stdout

    def start(self, terminal: str, commands: str, shown: str = "") -> None:
        """Run the commands in another terminal until `stop`. Return when they have printed `shown`."""
        log = self.folder / f"{terminal}.log"
        begin = f"cd {self.folder / 'shop'}\n. .venv/bin/activate\n" if not commands.startswith("cd shop") else ""
        with log.open("wb") as output:
            self.running[terminal] = process = subprocess.Popen(
                ["bash", "-c", f"set -e\n{begin}{self.here(commands)}"], cwd=self.folder, env=self.environ,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_until(
            lambda: process.poll() is not None or agrees(log.read_text(), f"{shown}…"),
            lambda: f"{commands}\nprinted\n{log.read_text()}\nnot\n{shown}",
        )
        assert process.poll() is None, f"{commands}\n{log.read_text()}"

    def stop(self, terminal: str, by: signal.Signals = signal.SIGINT) -> None:
        """Stop the program in that terminal. The signal goes to all its processes, as Ctrl-C does."""
        if process := self.running.pop(terminal, None):
            os.killpg(process.pid, by)
            code = process.wait(PATIENCE)
            # uvicorn ends itself with the signal that it got. A shell reports that as 128 + signal.
            assert code in (0, -by, 128 + by), (self.folder / f"{terminal}.log").read_text()


@pytest.fixture
def reader(tmp_path: Path, wheels: Path, dependencies: Path, postgres_url: str) -> Iterator[Reader]:
    reader = Reader(tmp_path, wheels, dependencies, postgres_url)
    try:
        yield reader
        for terminal in list(reader.running):
            reader.stop(terminal)
    finally:
        for process in reader.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answers(port: str, path: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.proof
@pytest.mark.timeout(300)  # about 20 s of processor time, in some 40 processes
@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "awk"))), reason="needs bash, curl and awk")
def test_the_tutorial(reader: Reader) -> None:
    for block in BLOCKS:
        reader.follow(block)
    # The program used the installed wheel, and it serves the page.
    where = reader.paste("python -c 'import rowlock; print(rowlock.__file__)'")
    assert Path(where).is_relative_to(reader.folder / "shop/.venv")
    assert answers(reader.port, "/queue/_/")
    account = {"email": "ann@example.com", "password": "correct horse battery"}
    login = f"http://127.0.0.1:{reader.port}/queue/api/auth/login"
    httpx.post(login, json=account, trust_env=False, timeout=PATIENCE).raise_for_status()
    for terminal in list(reader.running):
        reader.stop(terminal)
    deploys(reader)


def deploys(reader: Reader) -> None:
    """Every command of the units, the Dockerfile and the compose file works, and stops on SIGTERM."""
    commands = [unit(name)["Service"]["ExecStart"] for name in FILES if name.endswith(".service")]
    compose = yaml.safe_load(FILES["compose.yaml"])["services"]
    commands += [service["command"] for service in compose.values() if "command" in service]
    commands += [shlex.join(yaml.safe_load(FILES["Dockerfile"].split("\nCMD ")[1]))]
    assert len(commands) == 5
    for command in commands:
        if "migrate" in command:
            reader.paste(command)
            continue
        reader.start("service", f"exec {command}")
        probe = (reader.port, "/queue/readyz") if "uvicorn" in command else (reader.health_port, "/")
        wait_until(functools.partial(answers, *probe), (reader.folder / "service.log").read_text)
        reader.stop("service", by=signal.SIGTERM)


def unit(name: str) -> ConfigParser:
    parsed = ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(FILES[name])
    return parsed


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_units_are_valid(tmp_path: Path) -> None:
    units = [name for name in FILES if name.endswith(".service")]
    assert len(units) == 2
    for name in units:
        # The units' programs are not on this machine: /bin/true stands for them.
        text = re.sub(r"(?<=^ExecStart=)\S+", "/bin/true", FILES[name], flags=re.MULTILINE)
        (tmp_path / Path(name).name).write_text(text)
    ended = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / Path(name).name) for name in units)],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    about_ours = [line for line in ended.stderr.splitlines() if "shop-" in line]
    assert (ended.returncode, about_ours) == (0, []), ended.stderr


def test_the_containers_have_every_package_and_file() -> None:
    """The image installs the packages of step 1, and has every Python file of the tutorial."""
    [install] = re.findall(
        r"pip install (.*rowlock.*)", "\n".join(block.body for block in BLOCKS if block.kind == "sh")
    )
    assert FILES["requirements.txt"].split() == shlex.split(install)
    [copied] = re.findall(r"^COPY (.*\.py.*) \./$", FILES["Dockerfile"], re.MULTILINE)
    assert set(copied.split()) >= {name for name in FILES if name.endswith(".py")}
