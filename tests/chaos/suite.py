"""The suite in a process of its own, for tests: it forks, and must not inherit pytest's threads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from chaos.counts import COUNT

IS_WHOLE = os.environ.get("MIXERLOOP_CHAOS") == "whole"
"""Whether all the cases of `make chaos` are run; otherwise slow tests run a part of them."""
TESTS = Path(__file__).parents[1]


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
