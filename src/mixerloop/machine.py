"""What this machine is, and what must be settled about it before torch computes."""

import ctypes
import os
import platform
import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

TILE_LEAF = 0x1D  # the CPUID leaf in which AMX describes its tiles
ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
ISA_WITHOUT_AMX = "AVX512_CORE_FP16"  # the largest set below AMX
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # numbers of glibc's mallopt
TOP_PAD_BYTES = 64 * 2**20


def settle() -> None:
    """Keep torch off AMX where it would die of an illegal instruction.

    Some virtual machines announce AMX and hide the CPUID leaf that describes it. oneDNN then sets
    up no tiles, and the first bfloat16 product kills the process. The limit is read when oneDNN
    first computes, so this comes before that; a limit the user has set is left alone.
    """
    if _amx_is_announced_but_hidden(_cpuinfo()):
        os.environ.setdefault(ISA_LIMIT, ISA_WITHOUT_AMX)


def keep_freed_memory() -> None:
    """Let this process use its memory again instead of giving it back after each tensor.

    glibc returns large blocks to the system when they are freed, and the next tensor pays for fresh
    pages: a tenth of a training step. Elsewhere nothing happens. For programs, not for imports.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, TOP_PAD_BYTES)


class Neighbours:
    """Watches, from now on, how busy others keep this machine."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def busy_cores(self) -> float | None:
        """Cores that others kept busy so far, on average; None where the system does not say."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = busy - self._busy - (_own_seconds() - self._own)
        return max(0.0, others / max(1e-3, time.monotonic() - self._began))


def _busy_seconds() -> float | None:
    """Processor time that everything on this machine has used, stolen time included."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _idle, _wait, *others = path.read_text().split("\n", 1)[0].split()[1:9]
    ticks = sum(map(int, (user, nice, system, *others)))
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def facts() -> dict[str, Any]:
    """What a result's reader should know of the machine."""
    model = _field(_cpuinfo(), "model name")
    return {
        "system": platform.system(),
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "isa_limit": os.environ.get(ISA_LIMIT),
    }


def _amx_is_announced_but_hidden(cpuinfo: str) -> bool:
    highest_leaf = _field(cpuinfo, "cpuid level")
    announced = "amx_tile" in _field(cpuinfo, "flags").split()
    return announced and highest_leaf.isdigit() and int(highest_leaf) < TILE_LEAF


@lru_cache
def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _field(cpuinfo: str, name: str) -> str:
    """The first core's value of a field, or nothing."""
    found = re.search(rf"^{name}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else ""
