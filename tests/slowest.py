"""A pytest plugin that names the slowest tests of a run that took longer than its budget.

The budget of `make test` stands in the `Makefile`: `--budget SECONDS`.
"""

import time
from collections import defaultdict

import pytest

NUM_SHOWN = 10


def add_options(parser: pytest.Parser) -> None:
    """The option of the plugin."""
    parser.addoption("--budget", type=float, help="name the slowest tests after so many seconds")


class Slowest:
    """Runs in the reporting process, to which xdist's workers send their reports."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._started = time.monotonic()
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up set-up, call and teardown."""
        self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest tests of a run over its budget."""
        took = time.monotonic() - self._started
        if took <= self._budget:
            return
        terminalreporter.section(f"{took:.0f} s, and the budget is {self._budget:.0f} s", red=True)
        for name, seconds in sorted(self._seconds.items(), key=lambda pair: -pair[1])[:NUM_SHOWN]:
            terminalreporter.line(f"{seconds:7.1f} s  {name}")
