"""What is too long to run for each change; `make nightly` runs it and writes docs/checks.md.

    python tests/nightly.py                      # some hours on two cores
    python tests/nightly.py --only fuzz memory   # parts of it

Each part that ends writes its line of the table: when it ran, on which commit, how long it took,
and how it ended. A part that fails does not stop the next one; the exit code is 1 then.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "checks.md"
BEGIN, END = "<!-- written by make nightly -->\n", "<!-- end of what make nightly writes -->\n"
HEAD = "| part | command | last run (UTC) | commit | minutes | end |\n|---|---|---|---|---|---|\n"
PYTEST = "python -m pytest -q -n auto --dist worksteal --full"
PARTS = {
    "chaos": f"{PYTEST} tests/chaos",
    "tests": f"{PYTEST} -m nightly tests/unit tests/property tests/parity tests/golden tests/e2e",
    "kills": "python benchmarks/kill_and_resume.py",
    "fuzz": "python benchmarks/fuzz_native.py",
    "memory": "python benchmarks/training_memory.py",
    "study": "mixerloop study quick",
}


def main() -> None:
    """Run the parts, one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    failed = [name for name in parser.parse_args().only if not passed(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def passed(name: str) -> bool:
    """Run a part and write down how it ended."""
    print(f"nightly, {name}: {PARTS[name]}", flush=True)
    started, clock = datetime.now(UTC), time.monotonic()
    program, *arguments = PARTS[name].split()
    ended = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=ROOT,
        env={**os.environ, "MIXERLOOP_CHAOS": "whole"},
    )
    minutes = (time.monotonic() - clock) / 60
    outcome = "passed" if ended.returncode == 0 else f"**failed** (exit code {ended.returncode})"
    cells = [name, f"`{PARTS[name]}`", f"{started:%Y-%m-%d %H:%M}", _commit(), f"{minutes:.0f}"]
    PAGE.write_text(with_line(PAGE.read_text(), name, f"| {' | '.join([*cells, outcome])} |\n"))
    return ended.returncode == 0


def with_line(page: str, name: str, line: str) -> str:
    """The page with a new line for a part; the lines of other parts stay."""
    before, _, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert end, f"{PAGE} has no place for the table"
    lines = dict.fromkeys(PARTS, "")
    for old in table.splitlines(keepends=True):
        part = re.match(r"\| (\w+) \|", old)
        if part and part[1] in lines:
            lines[part[1]] = old
    lines[name] = line
    return "".join((before, BEGIN, "\n", HEAD, *lines.values(), "\n", end, after))


def _commit() -> str:
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "src", "tests"], capture_output=True)
    return (commit.stdout.strip() or "unknown") + ("+" if changed.stdout else "")


if __name__ == "__main__":
    main()
