"""Provenance: the code, versions and machine that produced a result."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mixerloop import machine

_VERSIONED = ("mixerloop", "torch", "numpy", "safetensors", "sentencepiece")


def now() -> str:
    """The current time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect_provenance(**facts: Any) -> dict[str, Any]:
    """Command, commit, versions, machine and threads of this process, and the caller's facts."""
    return {
        "created": now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        **_source_version(),
        "versions": {name: _version(name) for name in _VERSIONED}
        | {"python": platform.python_version()},
        "machine": machine.facts(),
        "threads": _num_threads(),
        **facts,
    }


def _num_threads() -> int | None:
    """Torch's number of threads; None where torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def _source_version() -> dict[str, Any]:
    """The commit of the source tree; None for a package installed without its repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return process.stdout.strip()

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"commit": None, "dirty": None}
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
