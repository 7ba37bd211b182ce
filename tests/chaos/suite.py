"""The suite in a process of its own, for tests: it forks, and must not inherit pytest's threads."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chaos.counts import COUNT

IS_WHOLE = os.environ.get("MIXERLOOP_CHAOS") == "whole"
"""Whether tests of signals, full disks and kills run as many cases as in `make chaos`."""
TESTS = Path(__file__).parents[1]


def seed_of_commit() -> int:
    """A seed that another commit does not have, so that each commit runs other cases."""
    git = ["git", "-C", str(TESTS), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True)
    return int(commit.stdout, 16) if commit.returncode == 0 else 0


SEED = seed_of_commit()


def some_for_each_commit(names: Iterable[str], number: int) -> list[Any]:
    """Parameters of a test: a sample is slow and runs for each commit, the others are nightly."""
    every = sorted(names)
    chosen = random.Random(SEED).sample(every, number)
    marks = {name: pytest.mark.slow if name in chosen else pytest.mark.nightly for name in every}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


def run_suite(*arguments: object, folder: Path, record: Any) -> dict[str, Any]:
    """Run `python -m chaos ARGUMENTS`, record the number of cases, and fail with the violations."""
    tally_file = folder / "tally.json"
    ended = subprocess.run(
        [sys.executable, "-m", "chaos", *map(str, arguments), "--json", tally_file],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert tally_file.exists(), ended.stderr
    tally = json.loads(tally_file.read_text())
    rules = sum(tally["rules"].values())
    record(
        COUNT,
        f"{' '.join(map(str, arguments))}: {tally['cases']:,} cases in {tally['seconds']:.0f} s, "
        f"{len(tally['violations'])} violations, {rules} by a named rule, "
        f"{sum(tally['excluded'].values())} excluded",
    )
    assert ended.returncode == 0, ended.stdout
    return tally
