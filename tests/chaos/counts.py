"""A pytest plugin that prints, at the end of a run, how many cases of chaos ran.

A test calls `record_property(COUNT, line)`. Under xdist the workers send these lines with their
reports, so the plugin runs in the reporting process.
"""

import pytest

COUNT = "chaos"


class Counts:
    """Collects the lines of all tests."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the lines that a test recorded."""
        if report.when == "call":
            self._lines += [str(line) for name, line in report.user_properties if name == COUNT]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lines."""
        for line in self._lines:
            terminalreporter.write_line(f"chaos: {line}")
