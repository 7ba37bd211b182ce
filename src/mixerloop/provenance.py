"""Provenance: code, versions and machine behind a result."""

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
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect_provenance(**facts: Any) -> dict[str, Any]:
    """What a result's reader must know: code, versions and machine, and the caller's own facts."""
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
    """Of torch, where it is loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def _source_version() -> dict[str, Any]:
    """The commit of the source tree; none for an installed package without one."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"commit": None, "dirty": None}
    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
