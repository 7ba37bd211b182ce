"""A pytest plugin that writes down which tests passed, or leaves out those that passed before.

`.ci/run` runs the fast tests on a fresh clone and then, with all optional packages, only the rest:
the slow tests and those that were skipped.
"""

from pathlib import Path

import pytest


def add_options(parser: pytest.Parser) -> None:
    """The two options of the plugin."""
    parser.addoption("--passed-to", type=Path, help="write the names of the passed tests here")
    parser.addoption("--without-passed", type=Path, help="leave out the tests that are named here")


class PassedTests:
    """Runs in the reporting process, to which xdist's workers send their reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test whose own code passed."""
        if report.when == "call" and report.passed:
            self._passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the names, a line each."""
        self._path.write_text("".join(f"{name}\n" for name in sorted(self._passed)))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that passed before."""
    path = config.getoption("--without-passed")
    if path is None:
        return
    passed = set(path.read_text().splitlines())
    again, left_out = [], []
    for item in items:
        (left_out if item.nodeid in passed else again).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = again
