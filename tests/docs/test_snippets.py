"""Every Python snippet of the documentation runs in an empty folder, in the order of its page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[str]:
    return SNIPPET.findall(page.read_text("utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path, postgres_url: str) -> None:
    environ = {**os.environ, "DATABASE_URL": postgres_url, "PYTHONWARNINGS": "error"}
    for n, snippet in enumerate(snippets(page), 1):
        file = tmp_path / f"snippet_{n}.py"
        file.write_text(snippet)
        ended = subprocess.run(
            [sys.executable, file.name], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, f"{page.name}, snippet {n}:\n{snippet}\n{ended.stderr}"


def test_the_readme_has_snippets() -> None:
    assert len(snippets(ROOT / "README.md")) >= 3


def test_the_readme_lists_every_page() -> None:
    listed = re.findall(r"^- \[(docs/[\w-]+\.md)\]", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(f"docs/{page.name}" for page in PAGES[1:])


def test_tasks_in_several_modules(tmp_path: Path) -> None:
    """With the modules of docs/cli.md, the worker's module knows the tasks of all modules."""
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    files = re.findall(r"^```py\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    program = "from shop.worker import jobs; print(sorted(jobs.tasks))"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "['billing.invoice', 'send_mail']\n"
