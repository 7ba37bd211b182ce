"""A cell in a process of its own: what `mixerloop study FILE --cells N` does.

The process ends when its parent does, and with it the lock of its cell. Linux sees to that; where
there is no such service the process finishes its cell, which the lock keeps others away from.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any

from mixerloop import machine


def start_cell(
    study: str,
    folder: str,
    number: int,
    *,
    threads: int,
    stderr: int | IO[Any],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.Popen[str]":
    """Start a cell; its progress goes to `stderr`, everything else to its files."""
    own = {machine.NUM_THREADS: str(threads), machine.PARENT: str(os.getpid())}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mixerloop",
            "study",
            study,
            "--out",
            folder,
            "--cells",
            str(number),
        ],
        env={**os.environ, **environment, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
    )
