"""Every Python snippet of the documentation runs, in its page's order, in an empty folder."""

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
