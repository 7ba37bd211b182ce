"""A pytest plugin that counts skips by reason and fails a run with skips for other reasons."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Need:
    """Something a machine has or lacks, and the reason that a skipped test gives."""

    reason: str
    is_met: Callable[[], bool]

    @property
    def mark(self) -> pytest.MarkDecorator:
        """For a test, a parameter, or all of a file."""
        return pytest.mark.skipif(not self.is_met(), reason=self.reason)

    def or_skip(self) -> None:
        """Skip the rest of a test, a fixture or a file if the need is not met."""
        if not self.is_met():
            pytest.skip(self.reason, allow_module_level=True)


class SkipReasons:
    """Runs in the reporting process, to which xdist's workers send their reports."""

    def __init__(self, needs: Iterable[Need]) -> None:
        self._needs = {need.reason: need for need in needs}
        self._tests: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._unjustified: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a skipped test; its fixtures may have skipped it."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._count(report, self._tests)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that skips as a whole is never collected."""
        if report.skipped:
            self._count(report, self._files)

    def _count(self, report: pytest.TestReport | pytest.CollectReport, kind: Counter[str]) -> None:
        assert isinstance(report.longrepr, tuple | list)  # file, line and reason
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        kind[reason] += 1
        if reason not in self._needs:
            self._unjustified.append(f"{report.nodeid}: {reason!r} is not in tests/needs.py")
        elif self._needs[reason].is_met():
            self._unjustified.append(f"{report.nodeid}: {reason!r}, and it is here")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that skipped a test without a valid reason."""
        if self._unjustified and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """A line for each reason, the most frequent first."""
        reasons = (self._tests + self._files).most_common()
        if reasons:
            terminalreporter.section("skipped")
        for reason, _ in reasons:
            counts = ((self._tests[reason], "test"), (self._files[reason], "file"))
            shown = (f"{n} {what}{'s' * (n > 1)}" for n, what in counts if n)
            terminalreporter.line(f"{' and '.join(shown)}: {reason}")
        if self._unjustified:
            terminalreporter.section("skipped without a reason that holds here", red=True)
        for line in self._unjustified:
            terminalreporter.line(line)


def check_complete(packages: dict[str, Need]) -> None:
    """Reject a full run in which an optional package is missing."""
    missing = [need.reason for need in packages.values() if not need.is_met()]
    if missing:
        raise pytest.UsageError("--full: " + "; ".join(missing))
