"""Print the suites' figures at the end: one line for each suite, added up over all tests and processes."""

import re
from collections import Counter, defaultdict

import pytest

_LINE = re.compile(r"^([a-z][^:,]*)[^:]*: (\d[\d,]* violations, .*), (\d[\d,.]*) s\b", re.MULTILINE)
_FIGURE = re.compile(r"(\d[\d,]*) ([a-z ]+)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call" and "tests/proof/" in report.nodeid:
                for suite, said, took in _LINE.findall(report.capstdout):
                    counts = figures.setdefault(suite, Counter())
                    counts.update({what: int(number.replace(",", "")) for number, what in _FIGURE.findall(said)})
                    seconds[suite] += float(took.replace(",", ""))
    for suite, counts in figures.items():
        said = ", ".join(f"{number:,} {what}" for what, number in counts.items())
        terminalreporter.write_line(f"{suite}: {said}, {seconds[suite]:.1f} s")
